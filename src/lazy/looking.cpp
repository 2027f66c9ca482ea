#include "looking.h"

#include "executor.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/lazy/core/ir_util.h>
#include <torch/csrc/lazy/core/tensor_impl.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>
#include <unordered_set>
#include <vector>

namespace torchmdla::lazy {

using c10::DispatchKey;
using torch::jit::Stack;
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

// In front of an operator that may take the values of its first argument to another device.
class LookingKernel : public c10::OperatorKernel {
public:
  explicit LookingKernel(const c10::OperatorHandle& op)
      : original_(op.getComputedKernelForDispatchKey(DispatchKey::Lazy)),
        num_arguments_(op.schema().arguments().size()), target_(target_of(op.schema())) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const auto& self = torch::jit::peek(*stack, 0, num_arguments_).toTensor();
    const auto lazy = torch::lazy::TryGetLtcTensor(self);
    if (lazy && leaves(torch::jit::peek(*stack, target_, num_arguments_))) compute(lazy);
    original_.callBoxed(op, keys, stack);
  }

private:
  // The argument that says what device the values go to.
  static size_t target_of(const c10::FunctionSchema& schema) {
    const auto device = schema.argumentIndexWithName("device");
    return device ? *device : *schema.argumentIndexWithName("dst");
  }

  static bool leaves(const c10::IValue& target) {
    if (target.isTensor()) return !target.toTensor().device().is_lazy();
    return target.isDevice() && !target.toDevice().is_lazy();
  }

  const c10::SafeKernelFunction original_;
  const size_t num_arguments_, target_;
};

} // namespace

void register_looking() {
  static torch::Library looking(torch::Library::IMPL, "aten", DispatchKey::Lazy, __FILE__,
                                __LINE__);
  for (const auto* name : {"aten::_to_copy", "aten::_copy_from", "aten::_copy_from_and_resize"}) {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
    looking.impl(name,
                 torch::CppFunction::makeFromBoxedFunctor(std::make_unique<LookingKernel>(op)));
  }
}

} // namespace torchmdla::lazy
