// The device calls: C functions of the runtime that compiled code calls by name. Here they are
// PyTorch's (device_calls.cpp); the runtime without libtorch has others (native/device_calls.cpp).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace torchmdla {

struct DeviceCall {
  std::string name;
  void* address;
};

// Those that there are.
const std::vector<DeviceCall>& device_calls();

// The address of what compiled code may call: a device call, one of SLEEF's functions in libtorch,
// or one of the C library's. Null where none of them has it.
void* address_of_symbol(const std::string& name);

// Scratch memory of the calling thread, 64-byte aligned, at least `bytes` long; valid until the
// thread asks again. It grows to the largest request and stays, so that calls do not allocate.
void* thread_workspace(int64_t bytes);

} // namespace torchmdla

extern "C" {
typedef void (*mdla_kernel)(void* const* operands, int64_t begin, int64_t end);

// Runs `body` over [begin, end) in chunks of at least `grain` on PyTorch's intra-op pool, or that
// of the runtime without libtorch. Serial inside a parallel region and for small ranges.
void mdla_parallel_for(mdla_kernel body, void* const* operands, int64_t begin, int64_t end,
                       int64_t grain);

// Kernel number `kernel` of the entry begins, and the one before ends (kernel_times.h).
void mdla_begin_kernel(int64_t kernel);

// Memory of the calling thread for intermediate results of a chain's tile, 64-byte aligned, at
// least `bytes` long; valid until the thread asks again. It is not that of `thread_workspace`.
void* mdla_scratch(int64_t bytes);
}
