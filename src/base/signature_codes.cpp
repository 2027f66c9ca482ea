#include "signature_codes.h"

#include <limits>
#include <optional>

namespace torchmdla::signature_codes {

namespace {

constexpr size_t max_permuted_dimensions = 15;
constexpr size_t max_coded_dimensions = 8;

// Relation of a dimension to the next inner one. It determines which dimensions TensorIterator
// sorts inside of others, and which ones reshape can join. `_relation` in capture/symbolic/run.py
// distinguishes the same cases.
enum Relation : int64_t { repeated, tied, overlapping, joinable, apart };

Relation relation(int64_t stride, int64_t inner_stride, int64_t inner_size) {
  if (stride == 0) return repeated;
  if (stride == inner_stride) return tied;
  if (stride < inner_stride * inner_size) return overlapping;
  return stride == inner_stride * inner_size ? joinable : apart;
}

// Dimensions with more than one element, from the smallest stride to the largest. Of dimensions
// with equal strides the last comes first.
class FromInnermost {
public:
  FromInnermost(std::span<const int64_t> sizes, std::span<const int64_t> strides)
      : sizes_(sizes), strides_(strides) {}

  // Return the next dimension, by selection: tensors have few dimensions.
  std::optional<size_t> next() {
    std::optional<size_t> nearest;
    for (size_t i = 0; i < sizes_.size(); ++i)
      if (sizes_[i] != 1 && (!last_ || is_inside(*last_, i)) &&
          (!nearest || is_inside(i, *nearest)))
        nearest = i;
    if (nearest) last_ = nearest;
    return nearest;
  }

private:
  bool is_inside(size_t a, size_t b) const {
    return strides_[a] != strides_[b] ? strides_[a] < strides_[b] : a > b;
  }

  std::span<const int64_t> sizes_, strides_;
  std::optional<size_t> last_;
};

// Return the code of a permutation of contiguous strides, or 0 for other strides.
int64_t permutation_class(std::span<const int64_t> sizes, std::span<const int64_t> strides) {
  if (sizes.size() > max_permuted_dimensions) return 0;
  int64_t expected = 1, code = 0;
  FromInnermost order(sizes, strides);
  while (const auto dimension = order.next()) {
    if (strides[*dimension] != expected) return 0;
    expected *= sizes[*dimension];
    code = code << 4 | static_cast<int64_t>(*dimension + 1);
  }
  return code;
}

int64_t class_with_gaps(std::span<const int64_t> sizes, std::span<const int64_t> strides) {
  // The golden ratio in 64 bits spreads the codes of many dimensions (Knuth, volume 3, 6.4).
  constexpr uint64_t spread = 0x9e3779b97f4a7c15;
  const bool is_coded = sizes.size() <= max_coded_dimensions;
  uint64_t code = 1;
  int64_t inner_stride = 0, inner_size = 1;
  FromInnermost order(sizes, strides);
  while (const auto dimension = order.next()) {
    const auto relation_code = relation(strides[*dimension], inner_stride, inner_size);
    const auto dimension_code = (*dimension + 1) << 3 | static_cast<uint64_t>(relation_code);
    code = is_coded ? code << 7 | dimension_code : (code ^ dimension_code) * spread + (code >> 32);
    inner_stride = strides[*dimension];
    inner_size = sizes[*dimension];
  }
  return -static_cast<int64_t>(code & std::numeric_limits<int64_t>::max()) - 1;
}

} // namespace

int64_t stride_class(std::span<const int64_t> sizes, std::span<const int64_t> strides) {
  const auto permutation = permutation_class(sizes, strides);
  return permutation ? permutation : class_with_gaps(sizes, strides);
}

} // namespace torchmdla::signature_codes
