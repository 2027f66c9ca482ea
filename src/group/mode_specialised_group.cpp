#include "mode_specialised_group.h"

#include "base/forks.h"
#include "fusion/graph_values.h"
#include "statistics.h"

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
      parameters_(node->is(parameters_attribute())), written_around_(has_external_writes(node)),
      varying_(varying_inputs(node)), inputs_(node), flag_inputs_(flag_inputs(node)),
      flags_(inputs_.of(flag_inputs_)) {}

// A call for training runs in programs of a training step. If that is not possible, it runs in
// PyTorch's executor, which makes differentiable graphs of the variant, and groups inside of them.
void ModeSpecialisedGroup::run(Stack& stack) {
  auto& chosen = variant(flags(stack));
  if (chosen.group) return chosen.group->run(stack);
  inputs_.expand(stack);
  const auto below = stack.size() - inputs_.num_inputs();
  const bool is_recorded_by_autograd =
      needs_gradients(torch::jit::last(stack, inputs_.num_inputs()));
  const bool trains = is_recorded_by_autograd && chosen.backward_predictor.count_call();
  if (trains) {
    const auto outcome = chosen.training_steps->run(stack, inputs_.num_inputs());
    if (outcome != TrainingSteps::Outcome::compiled) ++statistics().training_calls;
    if (outcome != TrainingSteps::Outcome::none) return;
  }
  if (!trains || !chosen.subgraph->run_differentiable(stack)) chosen.division(stack);
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
  const auto count = num_variants_.load(std::memory_order_relaxed);
  if (count == max_variants) {
    if (!generic_) generic_ = group_again(graph_, OpenConditions::assume_violated);
    return *generic_;
  }
  variants_[count] = make_variant(flags);
  num_variants_.store(count + 1, std::memory_order_release);
  return *variants_[count];
}

ModeSpecialisedGroup::Variant* ModeSpecialisedGroup::find(const Flags& flags) const {
  const auto count = num_variants_.load(std::memory_order_acquire);
  for (size_t i = 0; i < count; ++i)
    if (variants_[i]->flags == flags) return variants_[i].get();
  return nullptr;
}

std::unique_ptr<ModeSpecialisedGroup::Variant>
ModeSpecialisedGroup::make_variant(const Flags& flags) const {
  auto graph = graph_->copy();
  for (size_t i = 0; i < flags.size(); ++i)
    replace_input(*graph, flag_inputs_[i], flags[i]);
  prune_branches(graph);
  auto result = group_again(graph, OpenConditions::assume_met);
  result->flags = flags;
  return result;
}

std::unique_ptr<ModeSpecialisedGroup::Variant>
ModeSpecialisedGroup::group_again(const std::shared_ptr<Graph>& graph,
                                  OpenConditions open_conditions) const {
  auto result = std::make_unique<Variant>();
  result->subgraph = std::make_shared<ScriptSubgraph>(graph, device_, written_around_, varying_);
  auto grouped = graph->copy();
  result->subgraph->fuse_groups(grouped,
                                {.open_conditions = open_conditions, .parameters = parameters_});
  const auto* group = find_single_group(*grouped);
  if (!group || group->hasAttribute(flags_attribute())) {
    result->division = result->subgraph->interpreted(grouped);
    result->training_steps = std::make_unique<TrainingSteps>(result->subgraph, device_, parameters_,
                                                             result->backward_predictor);
    return result;
  }
  std::vector<size_t> inputs;
  for (const auto* input : group->inputs())
    inputs.push_back(input->offset());
  result->group = std::make_shared<CompilationGroup>(group, inputs_.of(inputs));
  return result;
}

} // namespace torchmdla
