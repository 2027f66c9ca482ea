// What subgraphs have in common for which the same compiled code is right.
#pragma once

#include "support/sha256.h"

#include <torch/csrc/jit/ir/ir.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace torchmdla {

// Equal, in any process and on any machine, for subgraphs with the same operators, inputs of the
// same types, and constants of the same values; constant tensors that have dimensions are weights,
// of which dtypes, sizes and strides are the same. None where a subgraph holds something that has
// no such form.
using Structure = Digest;

std::optional<Structure> structure_of(torch::jit::Graph& graph, const std::string& device,
                                      const std::vector<int64_t>& parameters);

} // namespace torchmdla
