#include "mode_specialised_group.h"

#include "fusion/device_table.h"
#include "fusion/fusion_pass.h"
#include "fusion/graph_values.h"
#include "support/forks.h"
#include "ungrouped.h"

#include <torch/csrc/jit/passes/constant_propagation.h>
#include <torch/csrc/jit/runtime/custom_operator.h>

#include <functional>

namespace torchmdla {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Stack;
using torch::jit::Value;
namespace attr = c10::attr;
namespace prim = c10::prim;

namespace {

// Maximum number of variants. Modules have few modes; further ones share a variant that keeps its
// branches.
constexpr size_t max_variants = 32;

// Return the symbol of `mdla::drawn`. It uses the result of a random draw, so that the draw stays
// if it has no other use.
c10::Symbol drawn_symbol() {
  static const auto symbol = c10::Symbol::fromQualString("mdla::drawn");
  return symbol;
}

const torch::jit::RegisterOperators drawn({torch::jit::Operator(
    "mdla::drawn(Tensor draw) -> ()", [](Stack& stack) { stack.pop_back(); },
    c10::AliasAnalysisKind::CONSERVATIVE)});

void for_each_node(Block* block, const std::function<void(Node*)>& visit) {
  for (auto it = block->nodes().begin(); it != block->nodes().end();) {
    auto* node = *it++;
    for (auto* inner : node->blocks())
      for_each_node(inner, visit);
    visit(node);
  }
}

void replace_input(Graph& graph, size_t input, bool flag) {
  torch::jit::WithInsertPoint at_the_top(*graph.nodes().begin());
  graph.inputs()[input]->replaceAllUsesWith(graph.insertConstant(flag));
}

// Remove the branches that constants decide against. They may contain the only use of a random
// number that is drawn before them; the draw must stay.
void prune_branches(std::shared_ptr<Graph>& graph) {
  for_each_node(graph->block(), [&](Node* node) {
    if (!node->isNondeterministic() || node->outputs().size() != 1) return;
    const torch::jit::WithInsertPoint behind(node->next());
    if (is_tensor(node->output()))
      graph->insertNode(graph->create(drawn_symbol(), {node->output()}, /*num_outputs=*/0));
  });
  torch::jit::ConstantPropagationImmutableTypes(graph);
  for_each_node(graph->block(), [](Node* node) {
    if (node->kind() == drawn_symbol() && node->input()->uses().size() > 1) node->destroy();
  });
}

// Return the group that is all of `graph` but for constants, with the graph's outputs in the same
// order. Return null if there is no such group.
const Node* find_single_group(const Graph& graph) {
  const Node* group = nullptr;
  for (const auto* node : graph.nodes()) {
    if (node->kind() == prim::Constant) continue;
    if (group || node->kind() != group_symbol()) return nullptr;
    group = node;
  }
  return group && group->outputs().equals(graph.outputs()) ? group : nullptr;
}

std::vector<size_t> flag_inputs(const Node* node) {
  const auto& flags = node->is(flags_attribute());
  return {flags.begin(), flags.end()};
}

} // namespace

ModeSpecialisedGroup::ModeSpecialisedGroup(const Node* node)
    : graph_(node->g(attr::Subgraph)), device_(node->s(device_attribute())),
      name_(group_name(graph_)), parameters_(node->is(parameters_attribute())),
      written_around_(has_external_writes(node)), varying_(varying_inputs(node)), inputs_(node),
      flag_inputs_(flag_inputs(node)), flags_(inputs_.of(flag_inputs_)) {}

void ModeSpecialisedGroup::run(Stack& stack) {
  auto& chosen = variant(flags(stack));
  if (chosen.group) return chosen.group->run(stack);
  inputs_.expand(stack);
  const auto below = stack.size() - inputs_.num_inputs();
  const bool is_recorded_by_autograd =
      needs_gradients(torch::jit::last(stack, inputs_.num_inputs()));
  if (is_recorded_by_autograd && !written_around_ && chosen.backward_predictor.count_call())
    run_differentiable(chosen, stack);
  else
    torch::jit::InterpreterState(*chosen.grouped).run(stack);
  if (is_recorded_by_autograd)
    chosen.backward_predictor.add_backward_hooks(torch::jit::last(stack, stack.size() - below));
}

ModeSpecialisedGroup::Flags ModeSpecialisedGroup::flags(const Stack& stack) const {
  Flags values;
  for (const auto& value : flags_.find(stack))
    values.push_back(value.toBool());
  return values;
}

ModeSpecialisedGroup::Variant& ModeSpecialisedGroup::variant(const Flags& flags) {
  if (auto* existing = find(flags)) return *existing;
  const ForkSafeLock guard(mutex_);
  if (auto* existing = find(flags)) return *existing;
  if (variants_.size() >= max_variants) {
    if (!generic_) generic_ = make_generic();
    return *generic_;
  }
  auto result = make_variant(flags);
  result->next = newest_.load(std::memory_order_relaxed);
  newest_.store(result.get(), std::memory_order_release);
  variants_.push_back(std::move(result));
  return *variants_.back();
}

ModeSpecialisedGroup::Variant* ModeSpecialisedGroup::find(const Flags& flags) const {
  auto* entry = newest_.load(std::memory_order_acquire);
  while (entry && entry->flags != flags)
    entry = entry->next;
  return entry;
}

std::unique_ptr<ModeSpecialisedGroup::Variant>
ModeSpecialisedGroup::make_variant(const Flags& flags) const {
  auto result = std::make_unique<Variant>();
  result->flags = flags;
  result->graph = graph_->copy();
  for (size_t i = 0; i < flags.size(); ++i)
    replace_input(*result->graph, flag_inputs_[i], flags[i]);
  prune_branches(result->graph);
  regroup(*result);
  return result;
}

std::unique_ptr<ModeSpecialisedGroup::Variant> ModeSpecialisedGroup::make_generic() const {
  auto result = std::make_unique<Variant>();
  result->graph = graph_->copy();
  auto grouped = graph_->copy();
  if (const auto table = device_table(device_))
    fuse_groups(grouped, *table,
                {.open_conditions = OpenConditions::assume_violated,
                 .parameters = parameters_,
                 .has_external_writes = written_around_,
                 .varying = varying_,
                 .ungrouped = count_ungrouped(*table),
                 .failed = count_failed_pass});
  result->grouped.emplace(grouped, name_);
  return result;
}

void ModeSpecialisedGroup::regroup(Variant& variant) const {
  auto grouped = variant.graph->copy();
  if (const auto table = device_table(device_))
    fuse_groups(grouped, *table,
                {.parameters = parameters_,
                 .has_external_writes = written_around_,
                 .varying = varying_,
                 .ungrouped = count_ungrouped(*table),
                 .failed = count_failed_pass});
  const auto* group = find_single_group(*grouped);
  if (!group || group->hasAttribute(flags_attribute())) {
    variant.grouped.emplace(grouped, name_);
    return;
  }
  std::vector<size_t> inputs;
  for (const auto* input : group->inputs())
    inputs.push_back(input->offset());
  variant.group = std::make_shared<CompilationGroup>(group, inputs_.of(inputs));
}

// Run a variant with gradients. PyTorch's executor makes differentiable graphs of it, and groups
// inside of them.
void ModeSpecialisedGroup::run_differentiable(Variant& variant, Stack& stack) const {
  std::call_once(variant.differentiable_once, [&] {
    const ForkGuard section;
    variant.differentiable.emplace(*variant.graph, name_);
  });
  variant.differentiable->run(stack);
}

} // namespace torchmdla
