// Weights that PyTorch's quantised operators have packed, which are constants of a graph.
// torchmdla/importer/packed_weights.py reads them for the compiler in the same way.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace torchmdla {

struct PackedWeights {
  std::string kind;
  std::vector<int64_t> geometry; // stride, padding, dilation and groups of a convolution
  bool has_zero_points = false;
  bool has_bias = false;
  // Integers of the weights, their scales, their zero points unless all are zero, and the bias if
  // any.
  std::vector<at::Tensor> tensors;
};

// Return the content of packed weights, or nullopt for other values and unsupported kinds.
std::optional<PackedWeights> unpacked(const c10::IValue& value);

} // namespace torchmdla
