#include "kernels.h"

#include "operator_node.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/as_strided_ops.h>
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

// The strides that `as_strided` is given are those of the memory that a view lies in. Below
// autograd there is no such memory any more, so they are taken of what the view was made from.
at::Tensor as_strided(c10::DispatchKeySet keys, const at::Tensor& self, c10::SymIntArrayRef sizes,
                      c10::SymIntArrayRef strides, std::optional<c10::SymInt> offset) {
  const auto from = offset ? *offset : self.sym_storage_offset();
  // The key by which PyTorch's own kernel for gradients is still found.
  const auto others = (keys - c10::autograd_dispatch_keyset).add(DispatchKey::AutogradOther);
  return at::_ops::as_strided::redispatch(others, self.is_view() ? at::Tensor(self._base()) : self,
                                          sizes, strides, from);
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
  static torch::Library autograd(torch::Library::IMPL, "aten", DispatchKey::AutogradLazy, __FILE__,
                                 __LINE__);
  autograd.impl("as_strided", &as_strided);
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
