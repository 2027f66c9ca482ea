// Key that graphs share if they differ only in names and floats.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <memory>
#include <string>
#include <vector>

namespace torchmdla {

// Return the float constants of the graph's top-level block, in order.
std::vector<torch::jit::Node*> float_constants(torch::jit::Graph& graph);

// Return a key that is equal exactly for graphs with the same nodes, input types and constants.
// Values of float constants may differ. Tensor constants are the same if they are one tensor, or
// 0-d tensors of one dtype and value.
std::string graph_key(torch::jit::Graph& graph);

} // namespace torchmdla
