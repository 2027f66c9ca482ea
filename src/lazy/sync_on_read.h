// Computation of lazy tensors when a value is read.
#pragma once

#include "interceptor.h"

namespace torchmdla::lazy {

// Return the interceptor of `op`, or null if it does not read values of a lazy tensor. PyTorch
// computes only the tensor that is read, and computes shared parts again for other tensors. Two
// results of one model would take two passes. The interceptor computes all pending tensors of the
// thread that share a computation with it. It belongs to the dispatch key Lazy.
Interceptor read_interceptor(const c10::OperatorHandle& op);

} // namespace torchmdla::lazy
