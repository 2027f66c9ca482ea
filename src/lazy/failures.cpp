#include "failures.h"

#include "deferred/plain_modes.h"
#include "group/node_call.h"

#include <unordered_map>
#include <utility>

namespace torchmdla::lazy {

using torch::jit::Graph;
using torch::jit::Stack;
using torch::jit::Value;

namespace {

thread_local std::exception_ptr recorded_error;

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

std::vector<Outcome> run_call_by_call(const Graph& graph, const std::vector<Outcome>& inputs) {
  const PlainModes modes;
  std::unordered_map<const Value*, Outcome> outcomes;
  for (size_t i = 0; i < inputs.size(); ++i)
    outcomes.emplace(graph.inputs()[i], inputs[i]);
  for (const auto* node : graph.nodes()) {
    try {
      Stack stack;
      for (const auto* input : node->inputs())
        stack.push_back(value_of(outcomes.at(input)));
      call_node(*node, stack);
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

void record_error(std::exception_ptr error) {
  if (!recorded_error) recorded_error = std::move(error);
}

void rethrow_recorded_error() {
  if (recorded_error) std::rethrow_exception(std::exchange(recorded_error, nullptr));
}

} // namespace torchmdla::lazy
