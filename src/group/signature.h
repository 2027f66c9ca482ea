// Signatures, for which specialisations are compiled: dtypes, sizes and stride classes of tensors,
// values of integers, booleans, strings and lists, and computation modes. Floats are run-time
// arguments and not part of a signature.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torchmdla {

// Sequence of integers for a combination of inputs, equal exactly if the combinations are equal.
// The inline size holds a model with a few dozen inputs without allocating.
using Signature = c10::SmallVector<int64_t, 256>;

// Append the signature of `value`. Return false if groups do not support its kind.
bool append_signature(const c10::IValue& value, Signature& signature);

// Append one entry: the default dtype, the dtype of autocast, and the float32 products that
// PyTorch's settings allow to use bfloat16. Inputs do not show them, but results depend on them.
void append_modes(Signature& signature);

// Return the names of these products in torch.backends.mkldnn, from a complete signature.
std::vector<std::string> bf16_products(const Signature& signature);

// Return whether the default dtype is still that of a complete signature.
bool has_default_dtype(const Signature& signature);

// Kind of a signature's entry. Constants are equal in all calls of one specialisation. Numbers
// (sizes and integers) may become symbols, and varying numbers are known to differ from call to
// call. Inner sizes are those of all dimensions but a tensor's first, which is often a batch.
enum class EntryKind : uint8_t {
  constant,
  strides,
  parameter_size,
  number,
  inner_size,
  varying_number
};
using EntryKinds = std::vector<EntryKind>;

// Return the kinds of the entries of a value's signature; its sizes and integers are numbers.
EntryKinds entry_kinds(const c10::IValue& value);

} // namespace torchmdla
