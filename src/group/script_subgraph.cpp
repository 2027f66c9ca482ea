#include "script_subgraph.h"

#include "base/forks.h"
#include "fusion/device_table.h"
#include "packed_weights.h"
#include "ungrouped.h"

#include <c10/util/ScopeExit.h>
#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/ir/constants.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>

namespace torchmdla {

using torch::jit::Graph;
using torch::jit::Stack;

namespace {

// True while a group's own executor runs. A group inside of it that needs gradients after all must
// not start another executor.
thread_local bool in_differentiable_run = false;

// Return whether one of the graph's groups has this structure.
bool has_group_of(Graph& graph, const std::optional<Structure>& wanted, const std::string& device) {
  return wanted && std::ranges::any_of(graph.nodes(), [&](torch::jit::Node* node) {
           return node->kind() == group_symbol() &&
                  structure_of(*node->g(torch::jit::attr::Subgraph), device,
                               node->is(parameters_attribute())) == wanted;
         });
}

} // namespace

ScriptSubgraph::ScriptSubgraph(std::shared_ptr<torch::jit::Graph> graph, std::string device,
                               bool written_around, std::vector<int64_t> varying)
    : graph_(std::move(graph)), device_(std::move(device)), written_around_(written_around),
      varying_(std::move(varying)), name_(group_name(graph_)) {
  const auto table = device_table(device_);
  TORCH_CHECK(table, "torchmdla: a group is for device \"", device_,
              "\", which is not loaded here; "
              "call torchmdla.enable(device=\"",
              device_, "\") first");
  for (const auto* node : graph_->nodes())
    if (const auto* rule = table->rule(node))
      for (const auto& [argument, wanted] : rule->where) {
        const auto* value = node->input(*node->schema().argumentIndexWithName(argument));
        if (value->node()->kind() != c10::prim::Constant)
          conditions_.push_back({value->debugName(), wanted});
      }
}

void ScriptSubgraph::run(Stack& stack) {
  std::call_once(interpreted_once_, [&] {
    const ForkGuard section;
    interpreted_.emplace(graph_, name_);
  });
  torch::jit::InterpreterState(*interpreted_).run(stack);
}

Record ScriptSubgraph::run_and_record(Stack& stack) {
  return torchmdla::run_and_record(*graph_, stack);
}

std::vector<double> ScriptSubgraph::time_nodes(Stack& stack) {
  return torchmdla::time_nodes(*graph_, stack);
}

bool ScriptSubgraph::writes_inputs() const {
  const torch::jit::AliasDb aliases(graph_);
  return std::ranges::any_of(graph_->inputs(),
                             [&](const auto* input) { return aliases.hasWriters(input); });
}

bool ScriptSubgraph::run_differentiable(Stack& stack) {
  if (in_differentiable_run || written_around_) return false;
  std::call_once(differentiable_once_, [&] {
    const ForkGuard section;
    differentiable_.emplace(*graph_, name_);
  });
  in_differentiable_run = true;
  const auto leave = c10::make_scope_exit([] { in_differentiable_run = false; });
  differentiable_->run(stack);
  return true;
}

std::vector<c10::TypePtr> ScriptSubgraph::input_types() const {
  std::vector<c10::TypePtr> types;
  for (const auto* input : graph_->inputs())
    types.push_back(input->type());
  return types;
}

std::optional<Structure> ScriptSubgraph::structure(const std::string& device,
                                                   const std::vector<int64_t>& parameters) const {
  return structure_of(*graph_, device, parameters);
}

at::Tensor ScriptSubgraph::constant(size_t node, std::optional<size_t> element) const {
  auto at = graph_->nodes().begin();
  for (size_t i = 0; i < node && at != graph_->nodes().end(); ++i)
    ++at;
  TORCH_CHECK(at != graph_->nodes().end() && at->kind() == c10::prim::Constant, "torchmdla: node ",
              node, " of a group is not a constant");
  const auto value = torch::jit::toIValue(at->output()).value();
  if (!element) return value.toTensor();
  const auto packed = unpacked(value);
  return (packed ? packed->tensors : value.toTensorVector()).at(*element);
}

bool ScriptSubgraph::conditions_hold(const Record& record) const {
  if (conditions_.empty()) return true;
  std::unordered_map<std::string_view, const c10::IValue*> values;
  for (const auto& recorded : record)
    values[recorded.name] = std::get_if<c10::IValue>(&recorded.value);
  return std::all_of(conditions_.begin(), conditions_.end(), [&](const Condition& condition) {
    const auto match = values.find(condition.value);
    return match != values.end() && match->second &&
           match->second->equals(condition.wanted).toBool();
  });
}

Subgraph::Division ScriptSubgraph::divide(const std::vector<size_t>& excluded_nodes,
                                          const std::vector<int64_t>& parameters) {
  const ForkGuard section;
  auto graph = graph_->copy();
  if (fuse_groups(graph, {.open_conditions = OpenConditions::assume_violated,
                          .parameters = parameters,
                          .left_out = excluded_nodes}) == 0)
    return nullptr;
  TORCH_CHECK(!has_group_of(*graph, structure(device_, parameters), device_),
              "torchmdla: a division leaves nothing out");
  return interpreted(graph);
}

size_t ScriptSubgraph::fuse_groups(const std::shared_ptr<Graph>& graph,
                                   FusionOptions options) const {
  const auto table = device_table(device_);
  options.has_external_writes = written_around_;
  options.varying = varying_;
  options.ungrouped = count_ungrouped(*table);
  options.failed = count_failed_pass;
  return torchmdla::fuse_groups(graph, *table, options);
}

Subgraph::Division ScriptSubgraph::interpreted(const std::shared_ptr<Graph>& graph) const {
  auto code = std::make_shared<torch::jit::Code>(graph, name_);
  return [code](Stack& stack) { torch::jit::InterpreterState(*code).run(stack); };
}

} // namespace torchmdla
