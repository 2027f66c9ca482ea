// What a specialisation is made for: dtypes, sizes and stride classes of tensors, values of
// integers, booleans, strings and lists. Floats are run-time arguments and not part of it.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <vector>

namespace torchmdla {

// One integer sequence per combination, equal exactly when the combinations are. The inline size
// holds a model with a few dozen inputs without allocating.
using Signature = c10::SmallVector<int64_t, 256>;

// Appends `value`; false when it is of a kind that no group takes.
bool append_signature(const c10::IValue& value, Signature& signature);

// For each entry of a value's signature, whether it is a size or an integer: what may vary while
// everything else stays as it is.
std::vector<bool> marks_of_numbers(const c10::IValue& value);

} // namespace torchmdla
