// Lazy IR for operators that PyTorch generates none for.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/csrc/lazy/ts_backend/ts_node.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace torchmdla::lazy {

// A call of a functional operator on lazy tensors: tensors are operands, everything else is part of
// the node.
class OperatorNode : public torch::lazy::TsNode {
public:
  // An argument: a constant, or where its tensors stand among the operands; an undefined tensor
  // stands nowhere.
  struct Argument {
    enum class Kind { constant, tensor, list } kind;
    c10::IValue constant;
    std::vector<std::optional<size_t>> operands;
    c10::TypePtr element; // of a list
  };

  // `shapes`: of the results; the dtype of an undefined one is undefined too. `key` tells apart
  // calls that differ in operator or arguments.
  OperatorNode(const c10::OperatorHandle& op, std::vector<Argument> arguments,
               const std::vector<torch::lazy::Value>& operands,
               std::vector<torch::lazy::Shape> shapes, const std::string& key);

  torch::lazy::TSOpVector Lower(std::shared_ptr<torch::jit::GraphFunction> function,
                                torch::lazy::TSLoweringContext* context) const override;

private:
  const std::vector<Argument> arguments_;
};

// The first lazy device among the arguments of a call.
std::optional<torch::lazy::BackendDevice> device_of(std::span<const c10::IValue> arguments);

// Whether calls of an operator can be written as IR: it does not write, makes no views or random
// numbers, and has tensors as results, whose sizes do not depend on data.
bool can_record(const c10::OperatorHandle& op);

// Takes the operator's arguments from the stack and pushes lazy tensors for its results. False,
// with the stack as it was, where the call cannot be written as IR: it writes, makes views or
// random numbers, has results that are no tensors or whose sizes depend on data, or PyTorch does
// not know their sizes beforehand.
bool record_call(const c10::OperatorHandle& op, torch::jit::Stack* stack);

} // namespace torchmdla::lazy
