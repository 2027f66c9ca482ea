// The device calls without PyTorch, and the other functions that code in a model's file may call.

#include "runtime/device_calls.h"

#include "base/aligned_memory.h"
#include "thread_pool.h"

#include <cmath>
#include <cstring>
#include <new>
#include <unordered_map>

namespace torchmdla {

namespace {

// Memory that grows to the largest request and never shrinks.
class Workspace {
public:
  void* at_least(int64_t needed) {
    if (needed > bytes_) {
      bytes_ = 0;
      memory_.reset();
      memory_ = allocate_aligned(static_cast<size_t>(needed));
      if (!memory_) throw std::bad_alloc();
      bytes_ = needed;
    }
    return memory_.get();
  }

private:
  AlignedMemory memory_;
  int64_t bytes_ = 0;
};

template <class Function> DeviceCall named(const char* name, Function* function) {
  return {name, reinterpret_cast<void*>(function)};
}

using OfDouble = double(double);
using OfFloat = float(float);
using OfDoubles = double(double, double);
using OfFloats = float(float, float);

// The C library's function `name` of double, and its variant of float.
#define OF_ONE(name) named<OfDouble>(#name, name), named<OfFloat>(#name "f", name##f)
#define OF_TWO(name) named<OfDoubles>(#name, name), named<OfFloats>(#name "f", name##f)

// Return the C library's functions that code may call. Kernels call some of them
// (torchmdla/devices/cpu/target/math_library.py). LLVM generates calls of others for loops and for
// operations for which the processor does not have an instruction.
const std::vector<DeviceCall>& library_functions() {
  static const std::vector<DeviceCall> functions{
      OF_ONE(acos),
      OF_ONE(acosh),
      OF_ONE(asin),
      OF_ONE(asinh),
      OF_ONE(atan),
      OF_TWO(atan2),
      OF_ONE(atanh),
      OF_ONE(cbrt),
      OF_ONE(cos),
      OF_ONE(cosh),
      OF_ONE(erf),
      OF_ONE(erfc),
      OF_ONE(exp),
      OF_ONE(exp2),
      OF_ONE(expm1),
      OF_ONE(log),
      OF_ONE(log10),
      OF_ONE(log1p),
      OF_ONE(log2),
      OF_TWO(pow),
      OF_ONE(sin),
      OF_ONE(sinh),
      OF_ONE(tan),
      OF_ONE(tanh),
      OF_ONE(ceil),
      OF_ONE(floor),
      OF_TWO(fmod),
      OF_ONE(nearbyint),
      OF_ONE(rint),
      OF_ONE(round),
      OF_ONE(sqrt),
      OF_ONE(trunc),
      OF_TWO(fmax),
      OF_TWO(fmin),
      OF_ONE(roundeven),
      named<double(double, double, double)>("fma", fma),
      named<float(float, float, float)>("fmaf", fmaf),
      named<void*(void*, const void*, size_t)>("memcpy", memcpy),
      named<void*(void*, const void*, size_t)>("memmove", memmove),
      named<void*(void*, int, size_t)>("memset", memset),
  };
  return functions;
}

#undef OF_ONE
#undef OF_TWO

} // namespace

const std::vector<DeviceCall>& device_calls() {
  static const std::vector<DeviceCall> calls{
      named("mdla_parallel_for", &mdla_parallel_for),
      named("mdla_share_entry", &mdla_share_entry),
      named("mdla_share_kernel", &mdla_share_kernel),
      named("mdla_begin_kernel", &mdla_begin_kernel),
      named("mdla_are_events_recorded", &mdla_are_events_recorded),
      named("mdla_record_event", &mdla_record_event),
      named("mdla_scratch", &mdla_scratch),
  };
  return calls;
}

void* address_of_symbol(const std::string& name) {
  static const auto addresses = [] {
    std::unordered_map<std::string, void*> addresses_by_name;
    for (const auto* const functions : {&device_calls(), &library_functions()})
      for (const auto& [name, address] : *functions)
        addresses_by_name.emplace(name, address);
    return addresses_by_name;
  }();
  const auto entry = addresses.find(name);
  return entry == addresses.end() ? nullptr : entry->second;
}

void* thread_workspace(int64_t bytes) {
  thread_local Workspace workspace;
  return workspace.at_least(bytes);
}

} // namespace torchmdla

void mdla_parallel_for(mdla_kernel body, void* const* operands, int64_t begin, int64_t end,
                       int64_t grain) {
  torchmdla::native::ThreadPool::of_this_process().run(body, operands, begin, end, grain);
}

// Threads of this pool take chunks when they are free, so they join after each kernel.
int32_t mdla_share_entry(mdla_shared_entry entry, void* const* buffers, int64_t) {
  int32_t status = 0;
  return entry(buffers, nullptr, &status) | status;
}

void mdla_share_kernel(mdla_member*, mdla_kernel body, void* const* operands, int64_t range,
                       const int64_t* constants) {
  if (!body) return; // a place where threads wait
  if (const auto grain = constants[1])
    mdla_parallel_for(body, operands, 0, range, grain);
  else
    body(operands, 0, range);
}

// This runtime records neither kernels nor events.
void mdla_begin_kernel(int64_t) {}

int32_t mdla_are_events_recorded(void) {
  return 0;
}

void mdla_record_event(const char*, const char*, int64_t, int64_t) {}

void* mdla_scratch(int64_t bytes) {
  thread_local torchmdla::Workspace scratch;
  return scratch.at_least(bytes);
}
