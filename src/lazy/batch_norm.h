// Running statistics on the lazy device.
#pragma once

#include "interceptor.h"

namespace torchmdla::lazy {

// In training `native_batch_norm` writes the running statistics, which its schema does not tell, so
// that functionalisation loses the writes. With this they are seen. For functionalisation; none
// where `op` is another operator.
Interceptor batch_norm_interceptor(const c10::OperatorHandle& op);

} // namespace torchmdla::lazy
