// Analysis of the inputs that a graph uses as weights.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <cstddef>
#include <vector>

namespace torchmdla {

// Return the indices of the tensor inputs of `graph` that are used only as weights. Such a use is
// an operator's weight, bias or statistics, or the right factor of a matrix product. The use may be
// direct or through views and conversions.
std::vector<size_t> weight_inputs(const torch::jit::Graph& graph);

} // namespace torchmdla
