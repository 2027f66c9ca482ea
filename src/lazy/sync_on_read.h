// What happens when someone looks at a value of a lazy tensor.
#pragma once

#include "interceptor.h"

namespace torchmdla::lazy {

// PyTorch computes the tensor that someone looks at alone, and computes what it shares with others
// again for them: two results of one model would be two passes. With this all are computed at once
// that the thread has pending and that share a computation with it. For Lazy; none where `op` does
// not take values away.
Interceptor looking_interceptor(const c10::OperatorHandle& op);

} // namespace torchmdla::lazy
