// What graphs that differ in nothing but names and floats have in common.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <memory>
#include <string>
#include <vector>

namespace torchmdla {

// The constants of type float of a graph's own block, in its order.
std::vector<torch::jit::Node*> float_constants(torch::jit::Graph& graph);

// Equal exactly for graphs with the same nodes, inputs of the same types and constants of the same
// values, but for float constants, which may have any values. Tensor constants are the same if they
// are one tensor, or 0-d ones of one dtype and value.
std::string graph_key(torch::jit::Graph& graph);

} // namespace torchmdla
