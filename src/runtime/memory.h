// Memory for vectors, and how much of it the runtime holds.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace torchmdla {

// Bytes held by what was packed of parameters, and by the workspaces of all threads.
struct MemoryUse {
  std::atomic<int64_t> packed{0};
  std::atomic<int64_t> workspace{0};
};
MemoryUse& memory_use();

// 64-byte aligned, in huge pages where it is large and the system gives them; it counts among
// `held` until it is freed. Throws when there is none.
std::shared_ptr<void> aligned_memory(int64_t bytes, std::atomic<int64_t>& held);

} // namespace torchmdla
