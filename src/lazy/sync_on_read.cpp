#include "sync_on_read.h"

#include "deferred/aten_operators.h"
#include "pending.h"

#include <torch/csrc/lazy/core/lazy_graph_executor.h>
#include <torch/csrc/lazy/core/tensor_impl.h>

#include <array>
#include <string_view>

namespace torchmdla::lazy {

namespace {

void compute(const torch::lazy::LazyTensorPtr& tensor) {
  if (!is_pending(*tensor->data())) return;
  auto tensors = pending_with(*tensor->data());
  torch::lazy::LazyGraphExecutor::Get()->SyncTensorsGraph(&tensors, /*devices=*/{}, /*wait=*/true,
                                                          /*sync_ltc_data=*/true);
}

// Operators that may move the values of their first argument to another device.
constexpr std::array<std::string_view, 3> copying{"aten::_to_copy", "aten::_copy_from",
                                                  "aten::_copy_from_and_resize"};

// Return the index of the argument that specifies the target device.
size_t target_of(const c10::FunctionSchema& schema) {
  const auto device = schema.argumentIndexWithName("device");
  return device ? *device : *schema.argumentIndexWithName("dst");
}

bool is_other_device(const c10::IValue& target) {
  if (target.isTensor()) return !target.toTensor().device().is_lazy();
  return target.isDevice() && !target.toDevice().is_lazy();
}

} // namespace

Interceptor read_interceptor(const c10::OperatorHandle& op) {
  if (!is_overload_in(copying, op)) return nullptr;
  return [target = target_of(op.schema())](const InterceptedCall& call) {
    const auto arguments = call.arguments();
    const auto lazy = torch::lazy::TryGetLtcTensor(arguments[0].toTensor());
    if (lazy && is_other_device(arguments[target])) compute(lazy);
    call.run_original();
  };
}

} // namespace torchmdla::lazy
