// Lazy IR for operators for which PyTorch does not generate any.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/csrc/lazy/ts_backend/ts_node.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace torchmdla::lazy {

// Call of a functional operator on lazy tensors. Tensors are operands; all other arguments are part
// of the node.
class OperatorNode : public torch::lazy::TsNode {
public:
  // An argument: a constant, or the indices of its tensors among the operands. An undefined tensor
  // does not have an index.
  struct Argument {
    enum class Kind { constant, tensor, list } kind;
    c10::IValue constant;
    std::vector<std::optional<size_t>> operands;
    c10::TypePtr element; // of a list
  };

  // `shapes` are the shapes of the results; an undefined result has an undefined dtype. `key`
  // distinguishes calls with different operators or arguments.
  OperatorNode(const c10::OperatorHandle& op, std::vector<Argument> arguments,
               const std::vector<torch::lazy::Value>& operands,
               std::vector<torch::lazy::Shape> shapes, const std::string& key);

  torch::lazy::TSOpVector Lower(std::shared_ptr<torch::jit::GraphFunction> function,
                                torch::lazy::TSLoweringContext* context) const override;

private:
  const std::vector<Argument> arguments_;
};

// Return the first lazy device among the arguments of a call.
std::optional<torch::lazy::BackendDevice> device_of(std::span<const c10::IValue> arguments);

// Return whether calls of an operator can be recorded as IR. It must not write, return views or
// draw random numbers. Its results must be tensors whose sizes do not depend on data.
bool can_record(const c10::OperatorHandle& op);

// Pop the operator's arguments from the stack and push lazy tensors for its results. Return false
// and leave the stack unchanged if the call cannot be recorded as IR. See `can_record`; PyTorch
// must also be able to infer the sizes of the results.
bool record_call(const c10::OperatorHandle& op, torch::jit::Stack* stack);

} // namespace torchmdla::lazy
