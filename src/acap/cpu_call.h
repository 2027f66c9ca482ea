// Calls of operators on the CPU tensors behind acap tensors.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace torchmdla::acap {

// Pop the arguments of `op` from the stack and push its results. This is correct for any operator
// on dense tensors. It computes the inputs and calls the CPU's kernel, which may write. Results
// that share a storage on the CPU share one on acap.
void call_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// Call `op` as `call_on_cpu` does, and count the call in `torchmdla.stats()`.
void fall_back_to_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack);

} // namespace torchmdla::acap
