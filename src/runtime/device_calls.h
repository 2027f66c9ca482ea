// Device calls: C functions of the runtime that compiled code calls by name. These use PyTorch
// (device_calls.cpp). The runtime without libtorch has others (native/device_calls.cpp).
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace torchmdla {

struct DeviceCall {
  std::string name;
  void* address;
};

const std::vector<DeviceCall>& device_calls();

// Return the address of a function that compiled code may call: a device call, a SLEEF function in
// libtorch, or a function of the C library. Return null if none of them has the name.
void* address_of_symbol(const std::string& name);

// Return scratch memory of the calling thread, 64-byte aligned and at least `bytes` long. It is
// valid until the thread's next request. It grows to the largest request and is kept, so that calls
// do not allocate.
void* thread_workspace(int64_t bytes);

// Free the memory that `thread_workspace` returned, if a call took so long that new memory for the
// next one costs little. PyTorch's operators between the groups of a step need memory, too.
void free_workspace_after(std::chrono::nanoseconds call);

} // namespace torchmdla

extern "C" {
typedef void (*mdla_kernel)(void* const* operands, int64_t begin, int64_t end);

// Run `body` over [begin, end) in chunks of at least `grain` on PyTorch's intra-op pool, or on that
// of the runtime without libtorch. It is serial inside a parallel region and for small ranges.
void mdla_parallel_for(mdla_kernel body, void* const* operands, int64_t begin, int64_t end,
                       int64_t grain);

// Entry that threads share. Each thread runs all of it, with its own `member` (shared_entry.cpp).
// `member` is null if one thread runs it. Kernels that fail write to `status`.
typedef struct mdla_member mdla_member;
typedef int32_t (*mdla_shared_entry)(void* const* buffers, mdla_member* member, int32_t* status);

// Run `entry` on at most `tasks` threads of PyTorch's intra-op pool, or on the calling thread
// alone. Return its status.
int32_t mdla_share_entry(mdla_shared_entry entry, void* const* buffers, int64_t tasks);

// Run the calling thread's part of [0, range) of the next kernel of a shared entry, after the
// kernels whose data it uses. `constants` describe the kernel. All threads call this for each
// kernel.
void mdla_share_kernel(mdla_member* member, mdla_kernel body, void* const* operands, int64_t range,
                       const int64_t* constants);

// End the running kernel of the entry and begin kernel number `kernel` (kernel_times.h).
void mdla_begin_kernel(int64_t kernel);

// Return whether events are recorded. A device does not have to measure them otherwise.
int32_t mdla_are_events_recorded(void);

// Record that the device was busy with `name`, a kernel or a transfer, in `stream` between two
// times of the monotonic clock, in nanoseconds (CLOCK_MONOTONIC). `stream` names the device, too:
// "npu 0: transfers". Any thread may call this, also after the entry has returned.
void mdla_record_event(const char* stream, const char* name, int64_t begin, int64_t end);

// Return memory of the calling thread for intermediate results of a chain's tile, 64-byte aligned
// and at least `bytes` long. It is valid until the thread's next request, and separate from that of
// `thread_workspace`.
void* mdla_scratch(int64_t bytes);
}
