#include "device_calls.h"

#include "device_events.h"
#include "input_releases.h"
#include "kernel_times.h"
#include "memory.h"
#include "thread_quota.h"

#include <ATen/Parallel.h>

#include <dlfcn.h>

#include <chrono>

namespace torchmdla {

namespace {

// Memory that grows to the largest request and is kept.
struct Workspace {
  std::shared_ptr<void> memory;
  int64_t bytes = 0;

  void* at_least(int64_t needed) {
    if (needed > bytes) {
      *this = {};
      *this = {aligned_memory(needed, memory_use().workspace), needed};
    }
    return memory.get();
  }
};

thread_local Workspace thread_memory;

// Time in which the system clears a byte of new memory, times 50.
constexpr std::chrono::duration<double, std::nano> time_per_byte(4);

} // namespace

const std::vector<DeviceCall>& device_calls() {
  static const std::vector<DeviceCall> calls{
      {"mdla_parallel_for", reinterpret_cast<void*>(&mdla_parallel_for)},
      {"mdla_share_entry", reinterpret_cast<void*>(&mdla_share_entry)},
      {"mdla_share_kernel", reinterpret_cast<void*>(&mdla_share_kernel)},
      {"mdla_begin_kernel", reinterpret_cast<void*>(&mdla_begin_kernel)},
      {"mdla_are_events_recorded", reinterpret_cast<void*>(&mdla_are_events_recorded)},
      {"mdla_record_event", reinterpret_cast<void*>(&mdla_record_event)},
      {"mdla_scratch", reinterpret_cast<void*>(&mdla_scratch)},
  };
  return calls;
}

void* address_of_symbol(const std::string& name) {
  for (const auto& call : device_calls())
    if (call.name == name) return call.address;
  static void* const torch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  void* const in_torch = torch != nullptr ? dlsym(torch, name.c_str()) : nullptr;
  return in_torch != nullptr ? in_torch : dlsym(RTLD_DEFAULT, name.c_str());
}

void* thread_workspace(int64_t bytes) {
  return thread_memory.at_least(bytes);
}

void free_workspace_after(std::chrono::nanoseconds call) {
  if (call > thread_memory.bytes * time_per_byte) thread_memory = {};
}

} // namespace torchmdla

void mdla_parallel_for(mdla_kernel body, void* const* operands, int64_t begin, int64_t end,
                       int64_t grain) {
  torchmdla::limit_to_quota();
  at::parallel_for(begin, end, grain,
                   [&](int64_t first, int64_t last) { body(operands, first, last); });
}

void mdla_begin_kernel(int64_t kernel) {
  using torchmdla::InputReleases, torchmdla::KernelClock;
  if (auto* releases = InputReleases::current()) releases->begin(static_cast<size_t>(kernel));
  if (!torchmdla::kernel_observation().any()) return;
  if (auto* clock = KernelClock::current()) clock->begin(static_cast<size_t>(kernel));
}

int32_t mdla_are_events_recorded(void) {
  return torchmdla::are_events_recorded();
}

void mdla_record_event(const char* stream, const char* name, int64_t begin, int64_t end) {
  if (torchmdla::are_events_recorded()) torchmdla::record_event({stream, name, begin, end});
}

void* mdla_scratch(int64_t bytes) {
  thread_local torchmdla::Workspace scratch;
  return scratch.at_least(bytes);
}
