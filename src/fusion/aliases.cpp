#include "aliases.h"

#include <torch/csrc/jit/ir/constants.h>

#include <algorithm>
#include <functional>
#include <unordered_set>
#include <utility>

namespace torchmdla {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;
namespace aten = c10::aten;
namespace prim = c10::prim;

namespace {

// Return the operators that may return an argument in PyTorch's kernels. These are composite
// operators, or convert tensors of another layout. `tests/fusion/test_aliases.py` compares the list
// with eager PyTorch.
const std::unordered_set<c10::Symbol>& argument_returning_ops() {
  static const auto kinds = [] {
    std::unordered_set<c10::Symbol> named;
    for (const char* name : {
             "aten::type_as",
             "aten::sum_to_size",
             "aten::_grad_sum_to_size",
             "aten::dropout",
             "aten::feature_dropout",
             "aten::alpha_dropout",
             "aten::feature_alpha_dropout",
             "quantized::dropout",
             "aten::atleast_1d",
             "aten::atleast_2d",
             "aten::atleast_3d",
             "aten::broadcast_tensors",
             "aten::meshgrid",
             "aten::cartesian_prod",
             "aten::chain_matmul",
             "aten::conj_physical",
             "aten::to_dense",
             "aten::lift",
             "aten::flatten_dense_tensors",
             "aten::unflatten_dense_tensors",
             "aten::unsafe_chunk",
             "aten::unsafe_split",
             "aten::unsafe_split_with_sizes",
         })
      named.insert(c10::Symbol::fromQualString(name));
    return named;
  }();
  return kinds;
}

// Add a value and, for a list, its elements. PyTorch's analysis assumes that a list with one reader
// holds nothing.
void add_memory(const Value* value, torch::jit::ValueSet& values) {
  values.insert(value);
  if (value->node()->kind() != prim::ListConstruct) return;
  for (const auto* element : value->node()->inputs())
    add_memory(element, values);
}

void add_results(const Value* value, torch::jit::ValueSet& values) {
  values.insert(value);
  for (const auto& use : value->uses())
    if (use.user->kind() == prim::ListUnpack)
      for (const auto* element : use.user->outputs())
        values.insert(element);
}

// Return whether a tensor is known to be quantised, because an operator on quantised tensors made
// it.
bool is_quantised(const Value* value) {
  static const auto quantized = c10::Symbol::fromQualString("quantized::add").ns();
  const auto* node = value->node();
  while (node->kind().is_aten() && node->kind() != aten::quantize_per_tensor &&
         !node->inputs().empty() && is_tensor(node->input(0)))
    node = node->input(0)->node();
  return node->kind().ns() == quantized || node->kind() == aten::quantize_per_tensor;
}

bool always_runs(const Node* loop) {
  const auto count = torch::jit::toIValue(loop->input(0));
  const auto condition = torch::jit::toIValue(loop->input(1));
  return count && count->toInt() > 0 && condition && condition->toBool();
}

// Collect the values that share memory through a loop. A loop that does not run returns its inputs,
// but PyTorch's analysis assumes that it returns results of its body.
void collect_joined_by_loop(const Node* loop, std::vector<torch::jit::ValueSet>& joined) {
  if (always_runs(loop)) return;
  constexpr size_t inputs_before_carried = 2;
  for (const auto* output : loop->outputs()) {
    if (!is_tensor(output) && !is_tensor_list(output)) continue;
    auto& values = joined.emplace_back();
    add_memory(loop->input(output->offset() + inputs_before_carried), values);
    add_results(output, values);
  }
}

void collect_joined(const Block* block, std::vector<torch::jit::ValueSet>& joined) {
  for (const auto* node : block->nodes()) {
    for (const auto* inner : node->blocks())
      collect_joined(inner, joined);
    if (node->kind() == prim::Loop) collect_joined_by_loop(node, joined);
    if (!may_return_argument(node)) continue;
    auto& values = joined.emplace_back();
    for (const auto* input : node->inputs())
      if (is_tensor(input) || is_tensor_list(input)) add_memory(input, values);
    for (const auto* output : node->outputs())
      add_results(output, values);
  }
}

} // namespace

bool may_return_argument(const Node* node) {
  // The result for several operands is a product, which is new.
  if (node->kind() == aten::einsum) {
    const auto* operands = node->input(1)->node();
    return operands->kind() != prim::ListConstruct || operands->inputs().size() == 1;
  }
  if (node->kind() == aten::dequantize) return !is_quantised(node->input(0));
  return argument_returning_ops().count(node->kind()) != 0;
}

Aliases::Aliases(const std::shared_ptr<Graph>& graph) : declared_(graph) {
  std::vector<torch::jit::ValueSet> joined;
  collect_joined(graph->block(), joined);
  const auto is_written = [&](const torch::jit::ValueSet& values) {
    return are_joined(values) || std::any_of(values.begin(), values.end(), [&](const Value* value) {
             return declared_.hasWriters(value);
           });
  };
  for (bool has_changed = true; std::exchange(has_changed, false);)
    has_changed = std::erase_if(joined, [&](const torch::jit::ValueSet& values) {
                    if (!is_written(values)) return false;
                    joined_.insert(values.begin(), values.end());
                    return true;
                  }) != 0;
}

bool Aliases::has_writers(const Value* value) const {
  return declared_.hasWriters(value) || are_joined({value});
}

bool Aliases::has_output_writers(const Node* node) const {
  const auto outputs = node->outputs();
  return std::any_of(outputs.begin(), outputs.end(),
                     [&](const Value* output) { return has_writers(output); });
}

bool Aliases::are_joined(const torch::jit::ValueSet& values) const {
  return !joined_.empty() && declared_.mayAlias(values, joined_);
}

} // namespace torchmdla
