// Conversion of pending nodes to a TorchScript graph, for execution and for display.
#pragma once

#include "deferred/graph_runner.h"
#include "graph.h"

#include <torch/csrc/jit/ir/ir.h>

#include <memory>
#include <string>
#include <vector>

namespace torchmdla::acap {

// Set the device whose op table is used to form groups. Call this before any other function.
void run_on_device(const std::string& device);

// Part of the graph that is ready to run.
struct Runnable {
  GraphRunner::Prepared prepared;
  std::vector<c10::IValue> inputs;
  std::shared_ptr<const void> evicted; // plans that are evicted; release them without graph_mutex()
};

// Prepare `nodes`, operands before users. Nodes that ran before are recognised and not lowered
// again. Throw if a graph cannot represent some of them. graph_mutex() must be held.
Runnable prepare(const std::vector<Node*>& nodes, const std::vector<ValuePtr>& outputs);

// Run the graph and return one plain CPU tensor for each output. Exceptions of PyTorch are passed
// on. Throw a PassingError if the compiler was interrupted or is strict.
std::vector<at::Tensor> run(const Runnable& runnable);

// Return the graph from which `values` are computed, as it was recorded. With `argument_per_use`,
// each use of a computed value is an input of its own.
std::shared_ptr<torch::jit::Graph> describe(const std::vector<ValuePtr>& values,
                                            bool argument_per_use);

} // namespace torchmdla::acap
