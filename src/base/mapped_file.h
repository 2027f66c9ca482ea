// Files that are read through mappings.
#pragma once

#include <cstddef>
#include <cstdint>

namespace torchmdla {

class OpenFile;

// Part of a file, mapped for reading and shared with other mappings of it.
class MappedFile {
public:
  // Map the part. Throw FileProblem if that is not possible.
  MappedFile(const OpenFile& file, uint64_t offset, uint64_t bytes);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::byte* data() const { return start_ + skipped_; }

private:
  std::byte* start_ = nullptr;
  size_t skipped_, bytes_; // mappings begin at pages
};

} // namespace torchmdla
