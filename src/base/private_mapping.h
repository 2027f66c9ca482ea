// Files that are mapped as memory which the process may write. Unlike a heap, such memory leaves
// the resident set when it is not used, because the file has its content.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace torchmdla {

class OpenFile;

// Whole file, mapped privately: a write copies its page, and the file stays as it is. The file's
// own content must not change.
class PrivateMapping {
public:
  // Map the file. Throw FileProblem if that is not possible.
  explicit PrivateMapping(const OpenFile& file);
  ~PrivateMapping();
  PrivateMapping(const PrivateMapping&) = delete;
  PrivateMapping& operator=(const PrivateMapping&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }

  // Drop the pages that were not written from the resident set. The next access reads them from the
  // file. Another thread must not write to the mapping meanwhile.
  void drop_unwritten_pages() const;

private:
  std::span<std::byte> bytes_;
};

// Return whether the memory lies in a PrivateMapping, and the system tells which of its pages were
// written.
bool has_observable_writes(const void* data, size_t bytes);

// Return the numbers of the written pages among `count` pages of a PrivateMapping. The first one
// starts at `pages`, a multiple of `page_size()`. If the system does not tell, return all.
std::vector<size_t> written_pages(const void* pages, size_t count);

// Give the process copies of the pages in which these bytes of a PrivateMapping lie. An access to
// such a page makes no other page of the file resident. The content stays, also if other threads
// write to it meanwhile.
void copy_pages(const void* data, size_t bytes);

// Let the system take whole pages of the memory out of the resident set. Unlike
// `drop_unwritten_pages`, this is safe at any time; the next access may have to read the disk.
void page_out(const void* data, size_t bytes);

size_t page_size();

} // namespace torchmdla
