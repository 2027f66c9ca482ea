// Strides and offsets of views of lazy tensors.
#pragma once

#include "interceptor.h"

#include <ATen/core/Tensor.h>

namespace torchmdla::lazy {

// Return the interceptor of `op`, or null if it does not make views. PyTorch's lazy tensors,
// including views, report that they are contiguous. Therefore `contiguous` and `reshape` return
// views where they should copy, and writes reach the wrong tensors. With the interceptor, a view
// has the strides and offset that it has on the CPU, if its source is contiguous. On this device
// all tensors that are not views are contiguous. The interceptor belongs to the dispatch key
// Functionalize.
Interceptor view_interceptor(const c10::OperatorHandle& op);

// Return whether `tensor` is a lazy tensor as users have it, with functionalisation.
bool is_lazy(const at::Tensor& tensor);

} // namespace torchmdla::lazy
