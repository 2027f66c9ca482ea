#include "batch_norm.h"

#include "views.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <memory>
#include <utility>

namespace torchmdla::lazy {

using c10::DispatchKey;
using torch::jit::Stack;

namespace {

// `writing`: the operator with the same arguments whose schema tells what it writes.
class BatchNorm : public c10::OperatorKernel {
public:
  BatchNorm(const c10::OperatorHandle& op, c10::OperatorHandle writing)
      : original_(op.getComputedKernelForDispatchKey(DispatchKey::Functionalize)),
        writing_(std::move(writing)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const auto argument = [&](size_t index) {
      return torch::jit::peek(*stack, index, op.schema().arguments().size());
    };
    constexpr size_t input = 0, running_mean = 3, running_var = 4, training = 5;
    const auto is_given = [&](size_t index) {
      const auto value = argument(index);
      return !value.isNone() && value.toTensor().defined();
    };
    const bool writes = is_lazy(argument(input).toTensor()) && argument(training).toBool() &&
                        is_given(running_mean) && is_given(running_var);
    if (writes) return writing_.redispatchBoxed(keys, stack);
    original_.callBoxed(op, keys, stack);
  }

private:
  const c10::SafeKernelFunction original_;
  const c10::OperatorHandle writing_;
};

} // namespace

void register_batch_norm() {
  static torch::Library below(torch::Library::IMPL, "aten", DispatchKey::Functionalize, __FILE__,
                              __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  below.impl("native_batch_norm",
             torch::CppFunction::makeFromBoxedFunctor(std::make_unique<BatchNorm>(
                 dispatcher.findSchemaOrThrow("aten::native_batch_norm", ""),
                 dispatcher.findSchemaOrThrow("aten::_native_batch_norm_legit", ""))));
}

} // namespace torchmdla::lazy
