// Structures of subgraphs. Subgraphs of equal structure can use the same compiled code.
#pragma once

#include "base/sha256.h"

#include <torch/csrc/jit/ir/ir.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace torchmdla {

// Digest of a subgraph. It is equal, in any process and on any machine, for subgraphs with the same
// operators, types of inputs and values of constants. Constant tensors with dimensions are weights:
// only their dtypes, sizes and strides count. A subgraph has no structure if it holds a value of
// another kind.
using Structure = Digest;

std::optional<Structure> structure_of(torch::jit::Graph& graph, const std::string& device,
                                      const std::vector<int64_t>& parameters);

} // namespace torchmdla
