// Tensors in memory: dtypes, sizes, strides and copies.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace torchmdla::native {

using Numbers = std::vector<int64_t>;

// PyTorch's own limit of the dimensions of a tensor.
constexpr size_t dimension_limit = 64;

// Numbers of a tensor's dimensions, without an allocation. Throw std::length_error for too many.
class Dimensions {
public:
  Dimensions() = default;
  Dimensions(std::span<const int64_t> numbers) {
    for (const auto number : numbers)
      push_back(number);
  }

  void push_back(int64_t number) {
    if (size_ == dimension_limit) throw std::length_error("a tensor has more than 64 dimensions");
    numbers_[size_++] = number;
  }
  void resize(size_t size) {
    while (size_ < size)
      push_back(0);
    size_ = size;
  }
  void insert(size_t place, int64_t number) {
    push_back(number);
    std::rotate(begin() + place, end() - 1, end());
  }
  void erase(size_t place) {
    std::rotate(begin() + place, begin() + place + 1, end());
    --size_;
  }

  size_t size() const { return size_; }
  int64_t* data() { return numbers_; }
  int64_t* begin() { return numbers_; }
  int64_t* end() { return numbers_ + size_; }
  const int64_t* begin() const { return numbers_; }
  const int64_t* end() const { return numbers_ + size_; }
  int64_t& operator[](size_t place) { return numbers_[place]; }
  int64_t operator[](size_t place) const { return numbers_[place]; }
  operator std::span<const int64_t>() const { return {numbers_, size_}; }

private:
  size_t size_ = 0;
  int64_t numbers_[dimension_limit];
};

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
Dimensions dense_strides(std::span<const int64_t> sizes, std::span<const int64_t> permutation);
Dimensions contiguous(std::span<const int64_t> sizes);

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
