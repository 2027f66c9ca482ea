#include "device_calls.h"

#include "kernel_times.h"

#include <ATen/Parallel.h>
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

// Memory that grows to the largest request and stays.
struct Workspace {
  std::shared_ptr<void> memory;
  int64_t bytes = 0;

  void* at_least(int64_t needed) {
    if (needed > bytes) {
      *this = {};
      *this = {aligned_memory(needed), needed};
    }
    return memory.get();
  }
};

} // namespace

const std::vector<DeviceCall>& device_calls() {
  static const std::vector<DeviceCall> calls{
      {"mdla_parallel_for", reinterpret_cast<void*>(&mdla_parallel_for)},
      {"mdla_begin_kernel", reinterpret_cast<void*>(&mdla_begin_kernel)},
      {"mdla_scratch", reinterpret_cast<void*>(&mdla_scratch)},
  };
  return calls;
}

std::shared_ptr<void> aligned_memory(int64_t bytes) {
  const auto start = static_cast<size_t>(bytes) < huge_page ? alignment : huge_page;
  const auto size = (static_cast<size_t>(bytes) + alignment - 1) / alignment * alignment;
  const auto rounded = std::max((size + start - 1) / start * start, alignment);
  std::shared_ptr<void> memory(std::aligned_alloc(start, rounded), std::free);
  TORCH_CHECK_WITH(OutOfMemoryError, memory, "torchmdla: cannot allocate ", size, " bytes");
#ifdef MADV_HUGEPAGE
  if (start == huge_page) madvise(memory.get(), size, MADV_HUGEPAGE);
#endif
  return memory;
}

void* thread_workspace(int64_t bytes) {
  thread_local Workspace workspace;
  return workspace.at_least(bytes);
}

} // namespace torchmdla

void mdla_parallel_for(mdla_kernel body, void* const* operands, int64_t begin, int64_t end,
                       int64_t grain) {
  at::parallel_for(begin, end, grain,
                   [&](int64_t first, int64_t last) { body(operands, first, last); });
}

void mdla_begin_kernel(int64_t kernel) {
  using torchmdla::KernelClock;
  if (!torchmdla::kernel_observation().any()) return;
  if (auto* clock = KernelClock::current()) clock->begin(static_cast<size_t>(kernel));
}

void* mdla_scratch(int64_t bytes) {
  thread_local torchmdla::Workspace scratch;
  return scratch.at_least(bytes);
}
