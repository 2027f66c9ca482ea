// Tensors in memory: dtypes, sizes, strides and copies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace torchmdla::native {

using Numbers = std::vector<int64_t>;

// Return the bytes of an element of `dtype` (tmdla_dtype), or 0 if there is no such dtype.
size_t element_bytes(int64_t dtype);
std::string dtype_name(int64_t dtype);

// Return text for messages, such as "2x3", or "a scalar" if `sizes` is empty.
std::string sizes_text(std::span<const int64_t> sizes);

// View of a tensor that the caller owns. Strides are in elements.
struct TensorView {
  std::byte* data;
  int64_t dtype;
  std::span<const int64_t> sizes;
  std::span<const int64_t> strides; // empty: contiguous
};

// Return the strides of a tensor that is contiguous after its dimensions are permuted.
Numbers dense_strides(std::span<const int64_t> sizes, std::span<const int64_t> permutation);
Numbers contiguous_strides(std::span<const int64_t> sizes);

// Return the number of elements. Throw std::length_error if it is too large for any memory.
size_t element_count(std::span<const int64_t> sizes);

// Return whether all elements of a tensor with these sizes and strides have an offset below
// `count`.
bool is_within(std::span<const int64_t> sizes, std::span<const int64_t> strides, size_t count);

// Return whether `tensor` has the layout of `strides`. Strides of dimensions of size 1 are ignored.
bool has_strides(const TensorView& tensor, std::span<const int64_t> strides);

// Copy the elements of a tensor of these sizes. Memory need not be aligned.
void copy_elements(std::byte* to, std::span<const int64_t> to_strides, const std::byte* from,
                   std::span<const int64_t> from_strides, std::span<const int64_t> sizes,
                   size_t element_bytes);

} // namespace torchmdla::native
