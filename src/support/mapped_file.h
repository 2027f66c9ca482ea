// Files that are read where they are mapped.
#pragma once

#include <cstddef>
#include <cstdint>

namespace torchmdla {

class OpenFile;

// Part of a file, mapped for reading and shared with whoever else maps it.
class MappedFile {
public:
  // Throws FileProblem.
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
