#include "node_call.h"

#include <torch/csrc/jit/ir/constants.h>

namespace torchmdla {

using torch::jit::Node;
using torch::jit::Stack;
namespace prim = c10::prim;

namespace {

// Construct a list. The interpreter has instructions instead of operators for this node and the
// next one.
void construct_list(const Node& node, Stack& stack) {
  c10::impl::GenericList list(node.output()->type()->expectRef<c10::ListType>().getElementType());
  for (auto& element : stack)
    list.push_back(std::move(element));
  stack.clear();
  stack.emplace_back(std::move(list));
}

void unpack_list(const Node& node, Stack& stack) {
  const auto list = torch::jit::pop(stack).toList();
  TORCH_CHECK(list.size() == node.outputs().size(), "Expected ", node.outputs().size(),
              " elements in a list but found ", list.size());
  for (size_t i = 0; i < list.size(); ++i)
    stack.push_back(list.get(i));
}

// Split a tensor into a fixed number of parts. The operator returns undefined tensors for missing
// parts that the subgraph does not use. PyTorch's interpreter raises an error instead, because its
// code drops unused outputs, which is a use. This function raises the same error.
void chunk(const Node& node, Stack& stack) {
  const auto tensor = torch::jit::pop(stack).toTensor();
  auto parts = tensor.chunk(node.i(torch::jit::attr::chunks), node.i(torch::jit::attr::dim));
  TORCH_CHECK(parts.size() == node.outputs().size(), "Expected chunk to return at least ",
              node.outputs().size(), " outputs, but got only ", parts.size());
  for (auto& part : parts)
    stack.emplace_back(std::move(part));
}

// Call an operator. A variadic operator needs the number of its inputs on the stack, unless it was
// made for its node.
void call_operator(const Node& node, Stack& stack) {
  const auto& op = node.getOperator();
  if (op.hasOperation() && op.schema().is_vararg())
    stack.emplace_back(static_cast<int64_t>(node.inputs().size()));
  node.getOperation()(stack);
}

} // namespace

void call_node(const Node& node, Stack& stack) {
  if (const auto constant = node.kind() == prim::Constant ? torch::jit::toIValue(node.output())
                                                          : std::optional<c10::IValue>())
    stack.push_back(*constant);
  else if (node.kind() == prim::ListConstruct)
    construct_list(node, stack);
  else if (node.kind() == prim::ListUnpack)
    unpack_list(node, stack);
  else if (node.kind() == prim::ConstantChunk)
    chunk(node, stack);
  else
    call_operator(node, stack);
  TORCH_INTERNAL_ASSERT(stack.size() == node.outputs().size());
}

} // namespace torchmdla
