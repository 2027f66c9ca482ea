// Files that this process has open: whose they are, and what is in them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

#include <sys/stat.h>

namespace torchmdla {

// A file cannot be read, or must not be trusted; the text names it.
struct FileProblem : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A plain file or a folder, open for reading. All that is said of it is said of one file, whatever
// becomes of its name meanwhile.
class OpenFile {
public:
  // `name` is what messages call it. Throws FileProblem.
  OpenFile(const std::string& path, std::string name);
  explicit OpenFile(const std::string& path) : OpenFile(path, path) {}
  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  const std::string& name() const { return name_; }
  bool is_folder() const { return S_ISDIR(status_.st_mode); }
  int descriptor() const { return descriptor_; }
  size_t size() const { return static_cast<size_t>(status_.st_size); }

  // A path that leads to this very file, for as long as it is open.
  std::string path() const;

  // Who but this process's user and root may have written it, and what to do about that; empty
  // where nobody may.
  std::string owner_problem() const;

  // How many bytes there were from `position` on, at most those of `to`. Throws FileProblem.
  size_t read(uint64_t position, std::span<std::byte> to) const;

private:
  const std::string name_;
  const int descriptor_;
  struct stat status_{};
};

} // namespace torchmdla
