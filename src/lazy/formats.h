// Memory formats of lazy tensors.
#pragma once

#include "interceptor.h"

namespace torchmdla::lazy {

// PyTorch's lazy device ignores the format that a copy is asked to be in. With this, `clone` and
// `to` with a format for channels that lie together give its strides, as a view of contiguous
// memory. For functionalisation; none where `op` is another operator.
Interceptor format_interceptor(const c10::OperatorHandle& op);

} // namespace torchmdla::lazy
