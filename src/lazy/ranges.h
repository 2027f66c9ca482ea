// Ranges that are written to tensors.
#pragma once

#include "interceptor.h"

namespace torchmdla::lazy {

// Return the interceptor of `op`, or null if it is not a range or does not write to a tensor. A
// range with as many elements as `out` is written in order, whatever the sizes of `out`.
// Functionalisation alone would give `out` the range's sizes. The interceptor belongs to the
// dispatch key Functionalize.
Interceptor range_interceptor(const c10::OperatorHandle& op);

} // namespace torchmdla::lazy
