#include "memory.h"

#include "base/aligned_memory.h"

#include <c10/util/Exception.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace torchmdla {

MemoryUse& memory_use() {
  static constinit MemoryUse instance;
  return instance;
}

void return_freed_memory() {
#ifdef __GLIBC__
  malloc_trim(/*pad=*/0);
#endif
}

std::shared_ptr<void> aligned_memory(int64_t bytes, std::atomic<int64_t>& counter) {
  auto memory = allocate_aligned(static_cast<size_t>(bytes));
  TORCH_CHECK_WITH(OutOfMemoryError, memory, "torchmdla: cannot allocate ", bytes, " bytes");
  counter += bytes;
  return {memory.release(), [&counter, bytes](void* freed) {
            counter -= bytes;
            FreeMemory()(freed);
          }};
}

} // namespace torchmdla
