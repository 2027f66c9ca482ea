// Verification of the contents of large parameters in mapped files (base/private_mapping.h). The
// system tells which pages were written, so the others stay out of the resident set.
#pragma once

#include "fingerprint.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace torchmdla {

// Return whether MappedContents verifies memory: it is large, and its writes are observable.
bool is_mapped_content(const void* data, size_t bytes);

// Return the number of bytes at the start of a mapped content that each call verifies by lines. A
// write to all of a parameter is noticed there. These pages stay resident.
size_t bytes_of_lines();

// Verifier of mapped contents. Thread-safe.
class MappedContents {
public:
  // Verify a content, which is that of the `bytes` bytes at `data`.
  void add(Fingerprint content, const void* data, size_t bytes);

  // Return whether the next pages are unchanged. Most calls do not look, because a call to the
  // system takes longer than a look at a line.
  bool verify_next();

  // Let the contents leave the resident set after other code has read them, except the lines that
  // each call verifies.
  void page_out() const;

private:
  struct Content {
    Fingerprint fingerprint;
    const std::byte* data;
    size_t bytes;
    size_t first_page; // number among the pages of all contents
    size_t num_pages;

    const std::byte* page(size_t number) const;
    bool is_page_unchanged(size_t number) const;
  };

  std::vector<Content> contents_;
  size_t num_pages_ = 0;
  std::atomic<size_t> next_page_{0};
  std::atomic<int64_t> next_time_{0};
};

} // namespace torchmdla
