// Interceptors: kernels of the lazy device that run in front of PyTorch's own.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>
#include <span>

namespace torchmdla::lazy {

// A boxed call that an interceptor receives.
struct InterceptedCall {
  const c10::OperatorHandle& op;
  const c10::SafeKernelFunction& original;
  c10::DispatchKeySet keys;
  torch::jit::Stack* stack;

  // Return the arguments on the stack. They are valid until they are popped.
  std::span<c10::IValue> arguments() const;

  // Run PyTorch's kernel, which replaces the arguments by its results.
  void run_original() const { original.callBoxed(op, keys, stack); }
};

// Function that pops the arguments from the stack and pushes the results, as a boxed kernel does.
using Interceptor = std::function<void(const InterceptedCall&)>;

// Install `interceptor` permanently in front of the current kernel of `op` for `key`.
void intercept(const c10::OperatorHandle& op, c10::DispatchKey key, Interceptor interceptor);

} // namespace torchmdla::lazy
