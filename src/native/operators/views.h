// Functions of views that other operators use, too.
#pragma once

#include "native/value.h"

#include <optional>

namespace torchmdla::native {

// Return a dimension that may be negative as an index. Throw Error if the tensor lacks it.
size_t dimension_of(int64_t dimension, size_t rank);

// Return the integers of a list.
Dimensions numbers_of(const Value& list);

// Return a view of `base` that begins `elements` after its first element.
Value view(Arena& arena, const Tensor& base, std::span<const int64_t> sizes,
           std::span<const int64_t> strides, int64_t elements);

Value narrow(Arena& arena, const Tensor& tensor, size_t dimension, int64_t start, int64_t length,
             int64_t step);

// Return the sizes of a list in which one may be -1. Throw Error if they do not fit.
Dimensions infer_sizes(const Tensor& tensor, const Value& list);

// Return the strides of a view of other sizes, or nullopt if only a copy has these sizes.
std::optional<Dimensions> view_strides(const Tensor& tensor, std::span<const int64_t> sizes);

// Return a view of these sizes, or else a copy.
Value reshape(Arena& arena, const Value& value, std::span<const int64_t> sizes);

} // namespace torchmdla::native
