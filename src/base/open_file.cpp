#include "open_file.h"

#include <cerrno>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

namespace torchmdla {

namespace {

[[noreturn]] void refuse_file(const std::string& name, const std::string& problem) {
  throw FileProblem(name + ": " + problem);
}

std::string last_error() {
  return std::generic_category().message(errno);
}

int open_to_read(const std::string& path) {
  // O_NONBLOCK is needed because opening a FIFO would wait for its writer.
  return open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
}

// Return four digits. Streams would add half a megabyte of locales to the runtime without libtorch.
std::string octal(mode_t mode) {
  std::string text;
  for (int shift = 9; shift >= 0; shift -= 3)
    text += static_cast<char>('0' + (mode >> shift & 7));
  return text;
}

} // namespace

OpenFile::OpenFile(const std::string& path, std::string name)
    : name_(std::move(name)), descriptor_(open_to_read(path)) {
  if (descriptor_ < 0) refuse_file(name_, last_error());
  const bool is_known = fstat(descriptor_, &status_) == 0;
  if (is_known && (S_ISREG(status_.st_mode) || is_folder())) return;
  const auto problem = is_known ? "it is not a plain file" : last_error();
  close(descriptor_);
  refuse_file(name_, problem);
}

OpenFile::~OpenFile() {
  close(descriptor_);
}

std::string OpenFile::path() const {
  return "/proc/self/fd/" + std::to_string(descriptor_);
}

std::string OpenFile::owner_problem() const {
  const auto user = geteuid();
  if (status_.st_uid != user && status_.st_uid != 0)
    return "it belongs to user " + std::to_string(status_.st_uid) + ": chown it to user " +
           std::to_string(user) + " or to root";
  if (status_.st_mode & (S_IWGRP | S_IWOTH))
    return "it is writable by others than its owner (mode " + octal(status_.st_mode) +
           "): chmod go-w";
  return "";
}

size_t OpenFile::read(uint64_t position, std::span<std::byte> to) const {
  size_t done = 0;
  while (done < to.size()) {
    const auto rest = to.subspan(done);
    const auto count =
        pread(descriptor_, rest.data(), rest.size(), static_cast<off_t>(position + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) refuse_file(name_, last_error());
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  return done;
}

} // namespace torchmdla
