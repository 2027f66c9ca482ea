// Registers the pass, and the operator that groups are, with PyTorch's JIT.

#include "compilation_group.h"
#include "fusion/device_table.h"
#include "fusion/fusion_pass.h"
#include "mode_specialised_group.h"
#include "profiling.h"
#include "statistics.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/jit/passes/pass_manager.h>
#include <torch/csrc/jit/runtime/custom_operator.h>
#include <torch/csrc/jit/runtime/graph_executor.h>

#include <memory>

namespace torchmdla {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Operation;
using torch::jit::Stack;

namespace {

// What autograd runs is the backward of a differentiable graph, which was profiled with that.
bool has_run() {
  return torch::jit::getNumProfiledRuns() != 0 || torch::autograd::get_current_node();
}

void run_pass(std::shared_ptr<Graph>& graph) {
  const auto table = current_device_table();
  if (!table) return;
  statistics().groups += static_cast<int64_t>(fuse_groups(graph, *table));
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
                          c10::AliasAnalysisKind::PURE_FUNCTION)});

const torch::jit::RegisterPass pass(run_pass);

} // namespace

} // namespace torchmdla
