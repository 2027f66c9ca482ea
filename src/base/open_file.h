// Open files, with their owners and contents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

#include <sys/stat.h>

namespace torchmdla {

// Failure to read a file, or to trust it; the text names the file.
struct FileProblem : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A plain file or a folder, open for reading. All members refer to the same file, even if its name
// changes meanwhile.
class OpenFile {
public:
  // Open a file, which messages call `name`. Throw FileProblem if that is not possible.
  OpenFile(const std::string& path, std::string name);
  explicit OpenFile(const std::string& path) : OpenFile(path, path) {}
  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  const std::string& name() const { return name_; }
  bool is_folder() const { return S_ISDIR(status_.st_mode); }
  int descriptor() const { return descriptor_; }
  size_t size() const { return static_cast<size_t>(status_.st_size); }

  // Return a path that leads to this very file, for as long as it is open.
  std::string path() const;

  // Return the problem and its remedy if users other than this process's user and root may have
  // written the file. Otherwise return an empty string.
  std::string owner_problem() const;

  // Read from `position` on, at most the bytes of `to`. Return their number. Throw FileProblem on
  // failure.
  size_t read(uint64_t position, std::span<std::byte> to) const;

private:
  const std::string name_;
  const int descriptor_;
  struct stat status_{};
};

} // namespace torchmdla
