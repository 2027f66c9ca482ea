// Pending nodes as a TorchScript graph, for running and for showing.
#pragma once

#include "deferred/graph_runner.h"
#include "graph.h"

#include <torch/csrc/jit/ir/ir.h>

#include <memory>
#include <string>
#include <vector>

namespace torchmdla::acap {

// Says whose op table groups are formed by; first of all.
void run_on_device(const std::string& device);

// A part of the graph made ready to run.
struct Runnable {
  GraphRunner::Prepared prepared;
  std::vector<c10::IValue> inputs;
  std::shared_ptr<const void> evicted; // plans that go with it, when graph_mutex() is free
};

// `nodes`, operands before users. What ran before is known again without being lowered. Throws
// where a graph cannot hold something of them. graph_mutex() must be held.
Runnable prepare(const std::vector<Node*>& nodes, const std::vector<ValuePtr>& outputs);

// One plain CPU tensor for each of the outputs. Throws what PyTorch throws, and a PassingError
// where the compiler was interrupted or is strict.
std::vector<at::Tensor> run(const Runnable& runnable);

// What `values` are computed from, as it was recorded. With `argument_per_use`, each use of a value
// at hand is an input of its own.
std::shared_ptr<torch::jit::Graph> describe(const std::vector<ValuePtr>& values,
                                            bool argument_per_use);

} // namespace torchmdla::acap
