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

// What an entry of a signature is: constants are equal in all calls that one specialisation takes,
// numbers (sizes and integers) may become symbols, and varying numbers are known to differ from
// call to call. Inner sizes are those of a tensor's dimensions but the first, which is often a
// batch.
enum class EntryKind : uint8_t {
  constant,
  strides,
  parameter_size,
  number,
  inner_size,
  varying_number
};
using EntryKinds = std::vector<EntryKind>;

// The kinds of the entries of a value's signature; its sizes and integers are numbers.
EntryKinds entry_kinds(const c10::IValue& value);

} // namespace torchmdla
