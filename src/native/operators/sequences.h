// Indices and slices of lists and strings.
#pragma once

#include "operators.h"

#include <optional>

namespace torchmdla::native {

// Return the place of an index that may be negative, or nullopt if it is out of range.
inline std::optional<size_t> place_of(int64_t index, size_t size) {
  if (index < 0) index += static_cast<int64_t>(size);
  if (index < 0 || index >= static_cast<int64_t>(size)) return std::nullopt;
  return static_cast<size_t>(index);
}

// Slice of a sequence: start, end and step are the operands from number 1 on.
struct Slice {
  Slice(const OperatorCall& call, size_t size);

  size_t at(size_t number) const {
    return static_cast<size_t>(start + static_cast<int64_t>(number) * step);
  }

  int64_t start, step;
  size_t count = 0;
};

} // namespace torchmdla::native
