#include "aligned_memory.h"

#include <algorithm>
#include <cstdint>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace torchmdla {

namespace {

constexpr size_t alignment = 64; // a cache line, and the widest vector of x86 and SVE-512

// Size of a huge page. A model's weights and intermediate results take more small pages than a
// processor keeps the addresses of, but few huge ones.
constexpr size_t huge_page = 2 << 20;

} // namespace

AlignedMemory allocate_aligned(size_t bytes) {
  const auto start = bytes < huge_page ? alignment : huge_page;
  const auto size = (bytes + alignment - 1) / alignment * alignment;
  const auto rounded = std::max((size + start - 1) / start * start, alignment);
  AlignedMemory memory(std::aligned_alloc(start, rounded));
  if (memory) use_huge_pages(memory.get(), size);
  return memory;
}

void use_huge_pages(void* memory, size_t bytes) {
#ifdef MADV_HUGEPAGE
  const auto start = reinterpret_cast<uintptr_t>(memory);
  const auto first = (start + huge_page - 1) / huge_page * huge_page;
  const auto end = (start + bytes) / huge_page * huge_page;
  if (first < end) madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
#endif
}

} // namespace torchmdla
