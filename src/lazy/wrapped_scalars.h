// Python's numbers among the arguments of lazy operators.
#pragma once

#include "interceptor.h"

#include <ATen/core/ivalue.h>

#include <span>

namespace torchmdla::lazy {

// A number that came as a tensor (`x * 0.5`) takes part in promotion as a number, but what a graph
// gets is a tensor like others, in double: `x.mean() > 0.1` would compare in that. Replaces such
// numbers among the arguments of a call by tensors of the dtype that they are promoted to.
void settle_numbers(std::span<c10::IValue> arguments);

// Does so for PyTorch's own kernels for Lazy; none where `op` has none or promotes nothing.
Interceptor number_interceptor(const c10::OperatorHandle& op);

} // namespace torchmdla::lazy
