// Random booleans, equal to PyTorch's.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchmdla {

// Return booleans that are true with this probability, drawn as `bernoulli_` draws them from
// PyTorch's generator. That generator makes its numbers one by one, and this function by vectors.
at::Tensor draw_mask(at::IntArrayRef sizes, double probability);

} // namespace torchmdla
