// Ranges that are written into tensors.
#pragma once

#include "interceptor.h"

namespace torchmdla::lazy {

// A range of as many elements as `out` has is written to them in their order, whatever sizes `out`
// has; functionalisation gives it the range's sizes. For functionalisation; none where `op` is no
// range or writes to no tensor.
Interceptor range_interceptor(const c10::OperatorHandle& op);

} // namespace torchmdla::lazy
