// An executor of a subgraph's own, for calls that need gradients.
#pragma once

#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/runtime/graph_executor.h>

#include <memory>
#include <string>

namespace torchmdla {

class DifferentiableGraph {
public:
  // A copy of `graph` without the types that were profiled.
  DifferentiableGraph(torch::jit::Graph& graph, const std::string& name);

  // Takes the graph's inputs from the stack and pushes its outputs, in memory that is nobody
  // else's.
  void run(torch::jit::Stack& stack);

private:
  void prepare(torch::jit::Stack& stack);

  torch::jit::GraphExecutor executor_;
  const size_t num_outputs_;
  const bool folds_tensors_; // the executor may keep results as constants
};

} // namespace torchmdla
