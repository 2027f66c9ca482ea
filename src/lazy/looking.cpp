#include "looking.h"

#include "aten_operators.h"
#include "executor.h"

#include <torch/csrc/lazy/core/ir_util.h>
#include <torch/csrc/lazy/core/tensor_impl.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace torchmdla::lazy {

using torch::lazy::LazyTensorPtr;
using torch::lazy::Node;

namespace {

bool is_pending(const LazyTensorPtr& tensor) {
  return !tensor->CurrentDataHandle() && tensor->CurrentIrValue();
}

std::vector<const Node*> post_order_of(const std::vector<LazyTensorPtr>& tensors) {
  std::vector<const Node*> roots;
  for (const auto& tensor : tensors)
    roots.push_back(tensor->CurrentIrValue().node.get());
  return torch::lazy::Util::ComputePostOrder(roots);
}

// Those of `candidates` whose computation has a part in common with that of `tensor`. Inputs and
// constants are no computations.
std::vector<LazyTensorPtr> sharing_with(const LazyTensorPtr& tensor,
                                        std::vector<LazyTensorPtr> candidates) {
  std::unordered_set<const Node*> shared;
  for (const auto* node : post_order_of({tensor}))
    if (!node->operands().empty()) shared.insert(node);
  for (const auto* node : post_order_of(candidates))
    if (std::any_of(node->operands().begin(), node->operands().end(),
                    [&](const auto& operand) { return shared.count(operand.node) != 0; }))
      shared.insert(node);
  std::erase_if(candidates, [&](const LazyTensorPtr& candidate) {
    return shared.count(candidate->CurrentIrValue().node.get()) == 0;
  });
  return candidates;
}

void compute(const LazyTensorPtr& tensor) {
  if (!is_pending(tensor)) return;
  auto candidates = tensors_of_this_thread();
  std::erase_if(candidates, [&](const LazyTensorPtr& candidate) {
    return !is_pending(candidate) || candidate->GetDevice() != tensor->GetDevice();
  });
  auto tensors = sharing_with(tensor, std::move(candidates));
  torch::lazy::LazyGraphExecutor::Get()->SyncTensorsGraph(&tensors, /*devices=*/{}, /*wait=*/true,
                                                          /*sync_ltc_data=*/true);
}

// Operators that may take the values of their first argument to another device.
constexpr std::array<std::string_view, 3> taking{"aten::_to_copy", "aten::_copy_from",
                                                 "aten::_copy_from_and_resize"};

// The argument that says what device the values go to.
size_t target_of(const c10::FunctionSchema& schema) {
  const auto device = schema.argumentIndexWithName("device");
  return device ? *device : *schema.argumentIndexWithName("dst");
}

bool leaves(const c10::IValue& target) {
  if (target.isTensor()) return !target.toTensor().device().is_lazy();
  return target.isDevice() && !target.toDevice().is_lazy();
}

} // namespace

Interceptor looking_interceptor(const c10::OperatorHandle& op) {
  if (!is_overload_in(taking, op)) return nullptr;
  return [target = target_of(op.schema())](const InterceptedCall& call) {
    const auto arguments = call.arguments();
    const auto lazy = torch::lazy::TryGetLtcTensor(arguments[0].toTensor());
    if (lazy && leaves(arguments[target])) compute(lazy);
    call.run_original();
  };
}

} // namespace torchmdla::lazy
