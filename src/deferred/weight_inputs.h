// Which inputs of a graph are used as weights.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <cstddef>
#include <vector>

namespace torchmdla {

// The indices of the tensor inputs of `graph` that are used as weights are, and in no other way: as
// an operator's weight, bias or statistics, or as the right factor of a matrix product, directly or
// through views and conversions.
std::vector<size_t> weight_inputs(const torch::jit::Graph& graph);

} // namespace torchmdla
