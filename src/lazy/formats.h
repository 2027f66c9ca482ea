// Memory formats of lazy tensors.
#pragma once

#include "interceptor.h"

#include <ATen/core/Tensor.h>

#include <optional>

namespace torchmdla::lazy {

// PyTorch's lazy device ignores how a copy is asked to lie in memory. With this, `clone` and `to`
// give the strides of a format for channels that lie together, or by default those of what is
// copied, as a view of contiguous memory. For functionalisation; none where `op` is another
// operator.
Interceptor format_interceptor(const c10::OperatorHandle& op);

// The same for what comes from the CPU. For the device.
Interceptor arrival_interceptor(const c10::OperatorHandle& op);

// A kernel for the device: strides that tell an order of the dimensions are those of a view of
// contiguous memory, too. A tensor with gaps is contiguous.
at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                         std::optional<at::Device> device, std::optional<bool> pin_memory);

} // namespace torchmdla::lazy
