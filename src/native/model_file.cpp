#include "model_file.h"

#include "error.h"
#include "support/sealed_block.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

namespace torchmdla::native {

namespace {

// As torchmdla/packages/native_file.py has them.
constexpr BlockFormat model_format{"torchmdla-model", 1, "a model's file"};
constexpr uint64_t file_page = 4096; // weights begin at one

[[noreturn]] void fail(const std::string& what) {
  throw Error(TMDLA_NOT_READABLE, what + ": " + std::generic_category().message(errno));
}

class OpenFile {
public:
  explicit OpenFile(const std::string& path)
      : path_(path), number_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (number_ < 0) fail(path);
  }
  ~OpenFile() { close(number_); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  int number() const { return number_; }

  uint64_t bytes() const {
    struct stat status{};
    if (fstat(number_, &status) != 0) fail(path_);
    if (!S_ISREG(status.st_mode)) throw Error(TMDLA_NOT_READABLE, path_ + ": it is no file");
    return static_cast<uint64_t>(status.st_size);
  }

  // From the beginning on; throws where the file is shorter.
  void read(std::span<std::byte> into) const {
    for (size_t done = 0; done < into.size();) {
      const auto got =
          pread(number_, into.data() + done, into.size() - done, static_cast<off_t>(done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail(path_);
      if (got == 0) throw BadBytes("it is cut short");
      done += static_cast<size_t>(got);
    }
  }

private:
  std::string path_;
  int number_;
};

uint64_t up_to_page(uint64_t offset) {
  return (offset + file_page - 1) / file_page * file_page;
}

std::vector<std::byte> read_sealed(const OpenFile& file) {
  std::array<std::byte, sealed_head_bytes> memory;
  const auto head = std::span(memory).first(std::min<uint64_t>(memory.size(), file.bytes()));
  file.read(head);
  const auto bytes = sealed_block_bytes(head, model_format);
  if (bytes > file.bytes()) throw BadBytes("a model's file: it is cut short");
  std::vector<std::byte> sealed(bytes);
  file.read(sealed);
  return sealed;
}

} // namespace

MappedFile::MappedFile(int file, uint64_t offset, uint64_t bytes)
    : skipped_(offset % static_cast<uint64_t>(sysconf(_SC_PAGESIZE))), bytes_(bytes + skipped_) {
  if (bytes == 0) return;
  void* const start =
      mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, file, static_cast<off_t>(offset - skipped_));
  if (start == MAP_FAILED) fail("the weights cannot be mapped");
  start_ = static_cast<std::byte*>(start);
  madvise(start_, bytes_, MADV_WILLNEED);
}

MappedFile::~MappedFile() {
  if (start_) munmap(start_, bytes_);
}

ModelFile::ModelFile(const std::string& path) {
  const OpenFile file(path);
  sealed_ = read_sealed(file);
  const auto begin = std::min(up_to_page(sealed_.size()), file.bytes());
  const auto bytes = file.bytes() - begin;
  content_ = read_content(content_of(sealed_, model_format), bytes);
  weights_.emplace(file.number(), begin, bytes);
}

void ModelFile::verify() const {
  for (size_t i = 0; i < content_.weights.size(); ++i) {
    const auto& expected = content_.weights[i];
    if (sha256({weight(i), expected.bytes}) != expected.digest)
      throw BadBytes("weight " + std::to_string(i) + " does not match its checksum");
  }
}

void ModelFile::drop_images() {
  content_.images.clear();
  sealed_ = {};
}

} // namespace torchmdla::native
