// Pending nodes as a TorchScript graph, for running and for showing.
#pragma once

#include "graph.h"

#include <torch/csrc/jit/ir/ir.h>

#include <memory>
#include <string>
#include <vector>

namespace torchmdla::acap {

// A graph and the tensors that its inputs stand for.
struct LoweredGraph {
  std::shared_ptr<torch::jit::Graph> graph;
  std::vector<c10::IValue> inputs;
};

// `nodes`, operands before users, as ATen calls, typed, each value at hand one input. Views that
// rely on strides, which a result at run time may not have, become reshapes. graph_mutex() must be
// held.
LoweredGraph lower(const std::vector<Node*>& nodes, const std::vector<ValuePtr>& outputs);

// Says whose op table groups are formed by; first of all.
void run_on_device(const std::string& device);

// Runs it by groups of that device. One plain CPU tensor for each of the outputs.
std::vector<at::Tensor> run(const LoweredGraph& lowered);

// What `value` is computed from, as it was recorded. With `argument_per_use`, each use of a value
// at hand is an input of its own.
std::shared_ptr<torch::jit::Graph> describe(const ValuePtr& value, bool argument_per_use);

} // namespace torchmdla::acap
