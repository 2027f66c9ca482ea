// Python numbers among the arguments of lazy operators.
#pragma once

#include "interceptor.h"

#include <ATen/core/ivalue.h>

#include <span>

namespace torchmdla::lazy {

// Replace numbers among the arguments of a call by tensors of the dtype to which they are promoted.
// A number that is a wrapped tensor (`x * 0.5`) is promoted as a number, but a graph receives an
// ordinary tensor of doubles. `x.mean() > 0.1` would therefore compare doubles.
void convert_wrapped_numbers(std::span<c10::IValue> arguments);

// Return the interceptor that does this for PyTorch's own kernel of `op` for Lazy. It is null if
// there is no kernel or no promotion.
Interceptor number_interceptor(const c10::OperatorHandle& op);

} // namespace torchmdla::lazy
