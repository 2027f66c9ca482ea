#include "binding.h"

#include "context.h"
#include "fault.h"
#include "library.h"

#include <cstring>

using torchmdla::mdla::catch_errors;
using torchmdla::mdla::Context;
using torchmdla::mdla::current_fault;
using torchmdla::mdla::Fault;

namespace torchmdla::mdla {

std::string& current_fault() {
  thread_local std::string text;
  return text;
}

} // namespace torchmdla::mdla

namespace {

constexpr int failed = -1;

// Index of the array of packed buffers among the entry's buffers.
constexpr size_t packed_position = 1;

Context*& context_in(void* buffer) {
  return *static_cast<Context**>(buffer);
}

Context& as_context(void* context) {
  return *static_cast<Context*>(context);
}

int64_t cycles_of(const torchmdla::mdla::Api& api, void* cmem, const char* name) {
  int64_t cycles = 0;
  return api.ie_getinfo(cmem, name, &cycles, sizeof cycles) == IE_INT64 ? cycles : 0;
}

// Run `call` and return 0, or `failed` if it throws.
template <class Call> int status_of(Call call) {
  return catch_errors(
      [&] {
        call();
        return 0;
      },
      failed);
}

} // namespace

const char* mdla_fault(void) {
  return current_fault().c_str();
}

void mdla_set_fault(const char* text) {
  current_fault() = text;
}

int mdla_compile(const char* library, mdla_flags flags, const char* model, const char* binary,
                 const char* shapes, const float* const* samples, const uint64_t* sample_elements,
                 unsigned count, mdla_cost* cost) {
  return status_of([&] {
    const auto& api = torchmdla::mdla::library(library);
    const auto cmem = torchmdla::mdla::create(api, flags);
    unsigned outputs = 0, *dimensions = nullptr;
    uint64_t** sizes = nullptr;
    const char* function = count ? "ie_compile_vfp" : "ie_compile";
    const void* compiled =
        count ? api.ie_compile_vfp(cmem.get(), model, binary, shapes, &outputs, &dimensions, &sizes,
                                   samples, sample_elements, count, nullptr)
              : api.ie_compile(cmem.get(), model, binary, shapes, &outputs, &dimensions, &sizes,
                               nullptr);
    if (!compiled) throw Fault(torchmdla::mdla::fault_of(api, function, cmem.get()));
    *cost = {cycles_of(api, cmem.get(), "input_cycles"), cycles_of(api, cmem.get(), "cycles"),
             cycles_of(api, cmem.get(), "output_cycles")};
  });
}

void* mdla_load(const char* library, mdla_flags flags, const char* binary, const mdla_port* inputs,
                unsigned input_count, const mdla_port* outputs, unsigned output_count,
                unsigned parts, double seconds) {
  return catch_errors(
      [&]() -> void* {
        return new Context(library, flags, binary, {inputs, inputs + input_count},
                           {outputs, outputs + output_count}, parts, seconds);
      },
      nullptr);
}

void mdla_unload(void* context) {
  delete static_cast<Context*>(context);
}

int32_t mdla_entry(void* const* buffers) {
  void* const packed = static_cast<void* const*>(buffers[packed_position])[0];
  return status_of([&] {
    auto* const context = context_in(packed);
    if (!context) throw Fault("ie_init: the network was not loaded");
    context->run(buffers);
  });
}

void mdla_release(void* buffer) {
  mdla_unload(context_in(buffer));
}

int mdla_submit(void* context, const float* const* inputs, void* user) {
  return status_of([&] { as_context(context).pipeline().submit(inputs, user); });
}

int mdla_collect(void* context, float** outputs, void** user) {
  return status_of([&] { as_context(context).pipeline().collect(outputs, user); });
}

int mdla_run(void* context, const float* const* inputs, float** outputs, int software) {
  return status_of([&] {
    auto& pipeline = as_context(context).pipeline();
    software ? pipeline.run_software(inputs, outputs) : pipeline.run(inputs, outputs);
  });
}

int mdla_info(void* context, const char* name, void* value, size_t size) {
  return as_context(context).info(name, value, size);
}
