// Runs operators on the CPU tensors behind acap tensors.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace torchmdla::acap {

// Takes `op`'s arguments from the stack and pushes its results. Always right, for any operator of
// dense tensors: computes the inputs, calls the CPU's kernel, which may write, and gives results
// the storages that the CPU's results share.
void call_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// The same, and `torchmdla.stats()` says so.
void fall_back_to_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack);

} // namespace torchmdla::acap
