#include "failures.h"

#include "plain_modes.h"

#include <torch/csrc/jit/ir/constants.h>

#include <unordered_map>
#include <utility>

namespace torchmdla::lazy {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Stack;
using torch::jit::Value;

namespace {

thread_local std::exception_ptr noted;

c10::IValue make_list(const Node& node, const Stack& elements) {
  c10::impl::GenericList list(node.output()->type()->expectRef<c10::ListType>().getElementType());
  for (const auto& element : elements)
    list.push_back(element);
  return list;
}

// Takes the inputs of a node and leaves its outputs. Lists are the interpreter's own instructions,
// not operators.
void call(const Node& node, Stack& stack) {
  if (node.kind() == c10::prim::Constant)
    stack.push_back(*torch::jit::toIValue(node.output()));
  else if (node.kind() == c10::prim::ListConstruct)
    stack = {make_list(node, stack)};
  else if (node.kind() == c10::prim::ListUnpack)
    stack = stack.at(0).toListRef().vec();
  else
    node.getOperation()(stack);
}

} // namespace

const c10::IValue& value_of(const Outcome& outcome) {
  if (const auto* error = std::get_if<std::exception_ptr>(&outcome)) std::rethrow_exception(*error);
  return std::get<c10::IValue>(outcome);
}

std::exception_ptr first_error(const std::vector<Outcome>& outcomes) {
  for (const auto& outcome : outcomes)
    if (const auto* error = std::get_if<std::exception_ptr>(&outcome)) return *error;
  return nullptr;
}

std::vector<Outcome> run_apart(const Graph& graph, const std::vector<Outcome>& inputs) {
  const PlainModes modes;
  std::unordered_map<const Value*, Outcome> outcomes;
  for (size_t i = 0; i < inputs.size(); ++i)
    outcomes.emplace(graph.inputs()[i], inputs[i]);
  for (const auto* node : graph.nodes()) {
    try {
      Stack stack;
      for (const auto* input : node->inputs())
        stack.push_back(value_of(outcomes.at(input)));
      call(*node, stack);
      for (size_t i = 0; i < node->outputs().size(); ++i)
        outcomes.emplace(node->outputs()[i], std::move(stack.at(i)));
    } catch (...) {
      for (const auto* output : node->outputs())
        outcomes.emplace(output, std::current_exception());
    }
  }
  std::vector<Outcome> results;
  for (const auto* output : graph.outputs())
    results.push_back(outcomes.at(output));
  return results;
}

void note_error(std::exception_ptr error) {
  if (!noted) noted = std::move(error);
}

void raise_noted_error() {
  if (noted) std::rethrow_exception(std::exchange(noted, nullptr));
}

} // namespace torchmdla::lazy
