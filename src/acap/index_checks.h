// Checks of indexing that PyTorch makes at the call.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <vector>

namespace torchmdla::acap {

// Return whether `op` indexes a tensor by a list of tensors. These may be on the CPU.
bool is_indexing(const c10::OperatorHandle& op);

// Return whether the CPU's kernel warns about a call with indices or a mask or rejects it, as far
// as the computed ones show. Meta kernels check neither indices nor the sizes of written values.
// Pending indices are not computed: their errors are raised when the result is read. A call whose
// values may not fit a pending mask is faulty, because only the mask's elements show it.
bool has_faulty_indices(const c10::OperatorHandle& op, const std::vector<c10::IValue>& arguments);

} // namespace torchmdla::acap
