// Codes in the signatures of calls, which the runtimes with and without libtorch share: a file has
// signatures that one of them wrote and the other one compares.
#pragma once

#include <cstdint>
#include <span>

namespace torchmdla::signature_codes {

enum Tag : int64_t { none, tensor, integer, boolean, floating, string, device, list, quantised };

// Return the class of the strides of a tensor that is not contiguous.
//
// Permutations of contiguous strides are positive, with four bits for each dimension. Others are
// negative, and encode the relations by which PyTorch's operators choose the layout of their
// results: seven bits for each dimension, or a hash of too many dimensions.
int64_t stride_class(std::span<const int64_t> sizes, std::span<const int64_t> strides);

// Class of contiguous strides.
constexpr int64_t contiguous_class = 0;

} // namespace torchmdla::signature_codes
