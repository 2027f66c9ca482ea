// What a specialisation is made for: dtypes, sizes and stride classes of tensors, values of
// integers, booleans, strings and lists, and the modes of computing that the call finds. Floats are
// run-time arguments and not part of it.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torchmdla {

// One integer sequence per combination, equal exactly when the combinations are. The inline size
// holds a model with a few dozen inputs without allocating.
using Signature = c10::SmallVector<int64_t, 256>;

// Appends `value`; false when it is of a kind that no group takes.
bool append_signature(const c10::IValue& value, Signature& signature);

// Appends one entry: the default dtype, the dtype of autocast, and which products of float32
// PyTorch's settings allow to be of bfloat16. No input tells them, but results depend on them.
void append_modes(Signature& signature);

// Such products by their names in torch.backends.mkldnn, as a whole signature has them.
std::vector<std::string> bf16_products(const Signature& signature);

// Whether the default dtype is still that of a whole signature.
bool has_default_dtype(const Signature& signature);

// For each entry of a value's signature, whether it is a size or an integer: what may vary while
// everything else stays as it is.
std::vector<bool> marks_of_numbers(const c10::IValue& value);

} // namespace torchmdla
