// Views of lazy tensors say where they lie.
#pragma once

#include "interceptor.h"

#include <ATen/core/Tensor.h>

namespace torchmdla::lazy {

// PyTorch's lazy tensors say that they are contiguous, views too, so `contiguous` and `reshape`
// give views where they should copy, and writes reach what they should not. With this, a view has
// the strides and the offset that it has on the CPU, if what it was made from is contiguous, as all
// is on this device that is no view. For functionalisation; none where `op` makes no views.
Interceptor view_interceptor(const c10::OperatorHandle& op);

// Whether it is a tensor of the device as users have it, with functionalisation in front.
bool is_lazy(const at::Tensor& tensor);

} // namespace torchmdla::lazy
