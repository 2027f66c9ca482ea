// Executor of one subgraph, for calls that need gradients.
#pragma once

#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/runtime/graph_executor.h>

#include <memory>
#include <string>

namespace torchmdla {

class DifferentiableGraph {
public:
  // Construct from a copy of `graph` without its profiled types.
  DifferentiableGraph(torch::jit::Graph& graph, const std::string& name);

  // Pop the graph's inputs from the stack and push its outputs. Outputs do not share memory with
  // the executor's constants.
  void run(torch::jit::Stack& stack);

private:
  void prepare(torch::jit::Stack& stack);

  torch::jit::GraphExecutor executor_;
  const size_t num_outputs_;
  const bool folds_tensors_; // whether the executor may keep results as constants
};

} // namespace torchmdla
