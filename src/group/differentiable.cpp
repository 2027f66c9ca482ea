#include "differentiable.h"

#include "fusion/graph_values.h"
#include "profiling.h"

#include <torch/csrc/jit/passes/shape_analysis.h>
#include <torch/csrc/jit/runtime/custom_operator.h>

#include <algorithm>
#include <functional>

namespace torchmdla {

using c10::Symbol;
using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;
namespace aten = c10::aten;
namespace attr = c10::attr;
namespace prim = c10::prim;

namespace {

// Replace `prim::ConstantChunk` by `aten::chunk` and indexing, which PyTorch's autograd
// differentiates. The executor's own derivative of a chunk omits the parts without a gradient, so
// its result is too small.
void replace_chunks_by_indexing(Block* block) {
  for (auto it = block->nodes().begin(); it != block->nodes().end();) {
    auto* node = *it++;
    for (auto* inner : node->blocks())
      replace_chunks_by_indexing(inner);
    if (node->kind() != prim::ConstantChunk) continue;
    auto& graph = *node->owningGraph();
    const torch::jit::WithInsertPoint before(node);
    auto* parts =
        graph.insert(aten::chunk, {node->input(), node->i(attr::chunks), node->i(attr::dim)});
    for (size_t k = 0; k < node->outputs().size(); ++k) {
      auto* part = graph.insert(aten::__getitem__, {parts, static_cast<int64_t>(k)});
      node->output(k)->replaceAllUsesWith(part);
    }
    node->destroy();
  }
}

bool is_random(const Node* node) {
  return node->isNondeterministic() ||
         std::any_of(node->blocks().begin(), node->blocks().end(), [](const Block* block) {
           return std::any_of(block->nodes().begin(), block->nodes().end(), is_random);
         });
}

// Return the symbol of `mdla::after`. This operator returns its first argument and depends on its
// second.
const Symbol& after_symbol() {
  static const auto symbol = Symbol::fromQualString("mdla::after");
  return symbol;
}

void return_first(torch::jit::Stack& stack) {
  stack.pop_back();
}

const torch::jit::RegisterOperators
    after({torch::jit::Operator("mdla::after(t value, u other) -> t", return_first,
                                c10::AliasAnalysisKind::PURE_FUNCTION),
           torch::jit::Operator("mdla::after.Tensor(Tensor(a) value, t other) -> Tensor(a)",
                                return_first, c10::AliasAnalysisKind::FROM_SCHEMA)});

// Return whether `node` depends on `other`, which precedes it in its block.
bool depends_on(Node* node, const Node* other) {
  NodeSet seen;
  std::vector<Node*> worklist{node};
  while (!worklist.empty()) {
    auto* needed = worklist.back();
    worklist.pop_back();
    if (needed == other) return true;
    for_each_input(needed, [&](Value* input) {
      auto* inner = node_in_block(input->node(), node->owningBlock());
      if (inner && !inner->isBefore(other) && seen.insert(inner).second) worklist.push_back(inner);
    });
  }
  return false;
}

// Make `node` depend on `other` through one of its inputs. A tensor input is the last choice,
// because it keeps adjacent nodes from being joined. Inputs of type None are excluded, because
// PyTorch replaces them by constants.
void add_dependence(Node* node, const Node* other) {
  const auto inputs = node->inputs();
  auto chosen = std::find_if(inputs.begin(), inputs.end(), [](const Value* input) {
    return !is_tensor(input) && input->type()->kind() != c10::TypeKind::NoneType;
  });
  if (chosen == inputs.end()) chosen = std::find_if(inputs.begin(), inputs.end(), is_tensor);
  if (chosen == inputs.end()) return;
  const torch::jit::WithInsertPoint before(node);
  auto* value = node->owningGraph()->insert(after_symbol(), {*chosen, other->output(0)});
  node->replaceInput(chosen - inputs.begin(), value);
}

// Make each random draw depend on the previous one. When nodes join a differentiable graph, PyTorch
// moves the nodes between them. Draws could then move past other draws that they do not depend on.
void keep_order_of_draws(Block* block) {
  Node* last = nullptr;
  for (auto* node : block->nodes()) {
    for (auto* inner : node->blocks())
      keep_order_of_draws(inner);
    if (!is_random(node)) continue;
    if (last && !last->outputs().empty() && !depends_on(node, last)) add_dependence(node, last);
    last = node;
  }
}

std::shared_ptr<Graph> prepare_copy(Graph& graph) {
  auto copy = graph.copy();
  torch::jit::EraseShapeInformation(copy);
  replace_chunks_by_indexing(copy->block());
  keep_order_of_draws(copy->block());
  return copy;
}

// Return whether a node of `block` makes a tensor from constants alone. `constant` holds such
// values outside of the block and receives those inside.
bool makes_constant_tensors(const Block* block, ValueSet& constant) {
  for (const auto* node : block->nodes()) {
    for (const auto* inner : node->blocks())
      if (makes_constant_tensors(inner, constant)) return true;
    const auto inputs = node->inputs();
    if (!node->blocks().empty() || !std::all_of(inputs.begin(), inputs.end(), [&](const Value* v) {
          return constant.count(v) != 0;
        }))
      continue;
    for (const auto* output : node->outputs()) {
      if (is_tensor(output) && !is_constant(node)) return true;
      constant.insert(output);
    }
  }
  return false;
}

bool makes_constant_tensors(Graph& graph) {
  ValueSet constant;
  return makes_constant_tensors(graph.block(), constant);
}

} // namespace

DifferentiableGraph::DifferentiableGraph(Graph& graph, const std::string& name)
    : executor_(prepare_copy(graph), name), num_outputs_(graph.outputs().size()),
      folds_tensors_(makes_constant_tensors(graph)) {}

// Make the first plans with profiling. The executor reads the profiling setting when it plans
// first, and so do the backward graphs of its second plan. Later plans are made without profiling
// (`leave_out_profiling`). Backward graphs specialise for the gradients that are missing, and for
// other sets of them as deep as the strategy allows. At depth 1 they specialise once and interpret
// other sets.
void DifferentiableGraph::prepare(torch::jit::Stack& stack) {
  constexpr size_t depth = 1;
  const WithProfiling profiling;
  auto code = executor_.getPlanFor(stack).code;
  torch::jit::Stack none;
  for (auto* backward : code.grad_executors())
    backward->getPlanFor(none, depth);
}

// Run the graph. The executor returns a tensor that it folded (zeros, for example) as the same
// tensor in every call. Such outputs are cloned, because the caller may write to them.
void DifferentiableGraph::run(torch::jit::Stack& stack) {
  if (!executor_.isOptimized()) prepare(stack);
  executor_.run(stack);
  if (!folds_tensors_) return;
  for (size_t i = 0; i < num_outputs_; ++i) {
    auto& output = torch::jit::peek(stack, i, num_outputs_);
    if (output.isTensor() && !output.toTensor().requires_grad()) output = output.toTensor().clone();
  }
}

} // namespace torchmdla
