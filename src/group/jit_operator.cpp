// Registration of the pass, and of the operator of groups, with PyTorch's JIT.

#include "compilation_group.h"
#include "fusion/device_table.h"
#include "fusion/fusion_pass.h"
#include "fusion/waits.h"
#include "mode_specialised_group.h"
#include "profiling.h"
#include "runtime/pending.h"
#include "statistics.h"
#include "ungrouped.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/jit/passes/pass_manager.h>
#include <torch/csrc/jit/runtime/custom_operator.h>
#include <torch/csrc/jit/runtime/graph_executor.h>

#include <memory>
#include <optional>

namespace torchmdla {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Operation;
using torch::jit::Stack;

namespace {

// Return whether the graph has run. Autograd runs the backward of a differentiable graph, which was
// profiled together with that graph.
bool has_run() {
  return torch::jit::getNumProfiledRuns() != 0 || torch::autograd::get_current_node();
}

bool is_of_device(Refusal refusal) {
  return refusal == Refusal::unsupported_operator || refusal == Refusal::unsupported_dtype ||
         refusal == Refusal::argument_value;
}

// Warn that a program has no group. PyTorch passes such warnings to Python later, so this does not
// need the GIL.
void warn_of_no_group(const UngroupedOperator& ungrouped) {
  TORCH_WARN("torchmdla: a program has no group to compile: ", ungrouped.op, ": ", ungrouped.reason,
             ". torchmdla.explain(model, *inputs) lists its operators.");
}

void run_pass(std::shared_ptr<Graph>& graph) {
  const auto table = current_device_table();
  if (!table) {
    ++statistics().optimised_without_device;
    return;
  }
  std::optional<UngroupedOperator> refused;
  const auto note = [&, count = count_ungrouped(*table)](const Ungrouped& ungrouped) {
    count(ungrouped);
    if (!refused && is_of_device(ungrouped.refusal)) refused = describe(ungrouped, table->device);
  };
  // PyTorch makes differentiable graphs of training steps in programs that it profiles.
  const bool joins_training = torch::jit::getNumProfiledRuns() == 0;
  // Programs without PyTorch cannot form groups again for the value of an attribute, so branches
  // stay outside.
  const bool is_native = settings().lone_groups;
  const auto groups = fuse_groups(
      graph, *table,
      {.open_conditions = is_native ? OpenConditions::assume_violated : OpenConditions::assume_met,
       .joins_training = joins_training,
       .joins_lone = is_native,
       .ungrouped = note,
       .failed = count_failed_pass});
  statistics().groups += static_cast<int64_t>(groups);
  if (groups == 0 && refused) warn_of_no_group(*refused);
  if (!has_run()) mark_first_run(graph->block());
}

Operation make_operation(const Node* node) {
  if (node->hasAttribute(flags_attribute())) {
    auto group = std::make_shared<ModeSpecialisedGroup>(node);
    return [group](Stack& stack) { group->run(stack); };
  }
  auto group = std::make_shared<CompilationGroup>(node);
  return [group](Stack& stack) { group->run(stack); };
}

const torch::jit::RegisterOperators operators(
    {torch::jit::Operator(group_symbol(), make_operation, c10::AliasAnalysisKind::PURE_FUNCTION),
     torch::jit::Operator(acap_group_symbol(), make_operation,
                          c10::AliasAnalysisKind::PURE_FUNCTION),
     torch::jit::Operator(
         wait_symbol().toQualString() + std::string("(Tensor(a) result) -> Tensor(a)"),
         [](Stack& stack) { wait_for(stack.back().toTensor()); },
         c10::AliasAnalysisKind::FROM_SCHEMA)});

const torch::jit::RegisterPass pass(run_pass);

} // namespace

} // namespace torchmdla
