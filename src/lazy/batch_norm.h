// Running statistics on the lazy device.
#pragma once

#include "interceptor.h"

namespace torchmdla::lazy {

// Return the interceptor of `native_batch_norm`, or null for other operators. In training the
// operator writes the running statistics, but its schema does not declare this, so
// functionalisation loses the writes. The interceptor makes them visible. It belongs to the
// dispatch key Functionalize.
Interceptor batch_norm_interceptor(const c10::OperatorHandle& op);

} // namespace torchmdla::lazy
