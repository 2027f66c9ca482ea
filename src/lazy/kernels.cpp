#include "kernels.h"

#include "operator_node.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/CPUFallback.h>
#include <torch/csrc/lazy/core/metrics.h>
#include <torch/library.h>

#include <array>
#include <map>
#include <mutex>
#include <string>

namespace torchmdla::lazy {

using c10::DispatchKey;
using torch::jit::Stack;

namespace {

// PyTorch's own kernels of these are wrong on lazy tensors: results that nobody wrote, or an error
// where a result is not asked for.
constexpr std::array replaced{
    "aten::pixel_shuffle",
    "aten::pixel_unshuffle",
    "aten::convolution_backward",
    "aten::_convolution",
};

// Counted as PyTorch counts its own fallbacks.
void count_eager(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::string, torch::lazy::Counter> counters; // guarded by mutex
  const std::lock_guard<std::mutex> guard(mutex);
  counters.try_emplace(name, name).first->second.AddValue(1);
}

// As IR where it can be, at once on the CPU where it cannot.
void record_or_run(const c10::OperatorHandle& op, Stack* stack) {
  if (record_call(op, stack)) return;
  count_eager(c10::toString(op.operator_name()));
  at::native::cpu_fallback(op, stack);
}

// Nobody has a kernel of it for lazy tensors, neither one of its own nor one made of other
// operators.
bool has_none(const c10::OperatorHandle& op) {
  return !op.hasKernelForDispatchKey(DispatchKey::Lazy) &&
         !op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) &&
         !op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd);
}

bool is_replaced(const c10::OperatorName& name) {
  return std::find(replaced.begin(), replaced.end(), name.name) != replaced.end();
}

class NoWarnings : public c10::WarningHandler {
public:
  void process(const c10::Warning&) override {}
};

} // namespace

void register_kernels() {
  // PyTorch warns of a kernel in the place of another one.
  NoWarnings silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  static torch::Library library(torch::Library::IMPL, "aten", DispatchKey::Lazy, __FILE__,
                                __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op || !op->hasSchema() || op->operator_name().getNamespace() != "aten") continue;
    if (!has_none(*op) && !is_replaced(name)) continue;
    const auto qualified = c10::toString(name);
    library.impl(qualified.c_str(), torch::CppFunction::makeFromBoxedFunction<&record_or_run>());
  }
}

} // namespace torchmdla::lazy
