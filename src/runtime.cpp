#include "runtime.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <cstdlib>
#include <memory>

namespace torchmdla {

namespace {

constexpr size_t alignment = 64; // a cache line, and the widest vector of x86 and SVE-512

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

struct Workspace {
  std::unique_ptr<void, Free> memory;
  size_t bytes = 0;
};

} // namespace

const std::vector<DeviceCall>& device_calls() {
  static const std::vector<DeviceCall> calls{
      {"mdla_parallel_for", reinterpret_cast<void*>(&mdla_parallel_for)},
  };
  return calls;
}

void* thread_workspace(int64_t bytes) {
  thread_local Workspace workspace;
  const auto wanted = (static_cast<size_t>(bytes) + alignment - 1) / alignment * alignment;
  if (wanted > workspace.bytes) {
    workspace = {};
    workspace.memory.reset(std::aligned_alloc(alignment, wanted));
    TORCH_CHECK_WITH(OutOfMemoryError, workspace.memory, "torchmdla: cannot allocate ", wanted,
                     " bytes of workspace");
    workspace.bytes = wanted;
  }
  return workspace.memory.get();
}

} // namespace torchmdla

void mdla_parallel_for(mdla_kernel body, void* const* operands, int64_t begin, int64_t end,
                       int64_t grain) {
  at::parallel_for(begin, end, grain,
                   [&](int64_t first, int64_t last) { body(operands, first, last); });
}
