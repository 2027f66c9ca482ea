// Memory formats of lazy tensors.
#pragma once

#include "interceptor.h"

#include <ATen/core/Tensor.h>

#include <optional>

namespace torchmdla::lazy {

// Return the interceptor of `clone` and `to`, or null for other operators. PyTorch's lazy device
// ignores the memory format of a copy. With the interceptor, a copy has channels-last strides if
// requested. By default it has the strides of its source. The copy is a view of contiguous memory.
// The interceptor belongs to the dispatch key Functionalize.
Interceptor format_interceptor(const c10::OperatorHandle& op);

// Return the interceptor for copies from the CPU. It belongs to the dispatch key Lazy.
Interceptor copy_from_cpu_interceptor(const c10::OperatorHandle& op);

// Return an empty tensor (a kernel for the device). Strides that are an order of the dimensions
// become those of a view of contiguous memory. Other tensors, which have gaps, become contiguous.
at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                         std::optional<at::Device> device, std::optional<bool> pin_memory);

} // namespace torchmdla::lazy
