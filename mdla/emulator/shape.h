// Sizes and strides of dense row-major tensors.
#pragma once

#include "fault.h"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace mdla {

using Shape = std::vector<int64_t>;

// Number of dimensions of a load or a store.
inline constexpr int kRank = 6;
using Index = std::array<int64_t, kRank>;
using Spatial = std::array<int64_t, 3>;

inline int64_t checked_product(int64_t left, int64_t right) {
  int64_t product = 0;
  require(!__builtin_mul_overflow(left, right, &product), "a size overflows 64 bits");
  return product;
}

inline int64_t checked_sum(int64_t left, int64_t right) {
  int64_t sum = 0;
  require(!__builtin_add_overflow(left, right, &sum), "a size overflows 64 bits");
  return sum;
}

template <class Sizes> int64_t elements(const Sizes& shape) {
  int64_t count = 1;
  for (int64_t size : shape)
    count = checked_product(count, size);
  return count;
}

inline Shape dense_strides(const Shape& shape) {
  Shape strides(shape.size());
  int64_t step = 1;
  for (size_t axis = shape.size(); axis-- > 0;) {
    strides[axis] = step;
    step = checked_product(step, shape[axis]);
  }
  return strides;
}

inline std::string text(const Shape& shape) {
  std::string out;
  for (size_t axis = 0; axis < shape.size(); ++axis)
    out += (axis ? "x" : "") + std::to_string(shape[axis]);
  return out.empty() ? "scalar" : out;
}

inline int64_t ceil_div(int64_t value, int64_t by) {
  return (value + by - 1) / by;
}

} // namespace mdla
