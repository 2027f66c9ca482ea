#include "memory.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace torchmdla {

namespace {

constexpr size_t alignment = 64; // a cache line, and the widest vector of x86 and SVE-512

// A model's weights and intermediate results are more small pages than a processor keeps the
// addresses of; of these there are few.
constexpr size_t huge_page = 2 << 20;

} // namespace

MemoryUse& memory_use() {
  static MemoryUse instance;
  return instance;
}

std::shared_ptr<void> aligned_memory(int64_t bytes, std::atomic<int64_t>& held) {
  const auto start = static_cast<size_t>(bytes) < huge_page ? alignment : huge_page;
  const auto size = (static_cast<size_t>(bytes) + alignment - 1) / alignment * alignment;
  const auto rounded = std::max((size + start - 1) / start * start, alignment);
  auto* const memory = std::aligned_alloc(start, rounded);
  TORCH_CHECK_WITH(OutOfMemoryError, memory, "torchmdla: cannot allocate ", size, " bytes");
  held += bytes;
#ifdef MADV_HUGEPAGE
  if (start == huge_page) madvise(memory, size, MADV_HUGEPAGE);
#endif
  return {memory, [&held, bytes](void* freed) {
            held -= bytes;
            std::free(freed);
          }};
}

} // namespace torchmdla
