// Tensors in memory: their elements, and how these lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace torchmdla::native {

using Numbers = std::vector<int64_t>;

// Bytes of an element of a dtype (tmdla_dtype); 0 where there is no such dtype.
size_t element_bytes(int64_t dtype);
std::string dtype_name(int64_t dtype);

// "2x3"; "a scalar" of no sizes.
std::string sizes_text(std::span<const int64_t> sizes);

// A tensor in somebody's memory. Strides are in elements.
struct TensorView {
  std::byte* data;
  int64_t dtype;
  std::span<const int64_t> sizes;
  std::span<const int64_t> strides; // empty: contiguous
};

// Strides of a tensor that is contiguous once its dimensions are permuted.
Numbers dense_strides(std::span<const int64_t> sizes, std::span<const int64_t> permutation);
Numbers contiguous_strides(std::span<const int64_t> sizes);

// Throws std::length_error where no memory has room for them.
size_t element_count(std::span<const int64_t> sizes);

// Whether each element of a tensor with these sizes and strides is among the first `count`.
bool lies_among(std::span<const int64_t> sizes, std::span<const int64_t> strides, size_t count);

// Whether the elements lie in memory as these strides say: strides of dimensions of one element
// say nothing.
bool lies_so(const TensorView& tensor, std::span<const int64_t> strides);

// Copies the elements of a tensor of these sizes. Memory need not be aligned.
void copy_elements(std::byte* to, std::span<const int64_t> to_strides, const std::byte* from,
                   std::span<const int64_t> from_strides, std::span<const int64_t> sizes,
                   size_t element_bytes);

} // namespace torchmdla::native
