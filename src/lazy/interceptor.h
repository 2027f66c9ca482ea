// Kernels of the lazy device that stand in front of PyTorch's own.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>
#include <span>

namespace torchmdla::lazy {

// A boxed call, as an interceptor gets it.
struct InterceptedCall {
  const c10::OperatorHandle& op;
  const c10::SafeKernelFunction& original;
  c10::DispatchKeySet keys;
  torch::jit::Stack* stack;

  // As they lie on the stack, until somebody takes them from there.
  std::span<c10::IValue> arguments() const;

  // PyTorch's kernel takes the arguments and leaves its results.
  void run_original() const { original.callBoxed(op, keys, stack); }
};

// Takes the arguments from the stack and leaves results there, as any boxed kernel.
using Interceptor = std::function<void(const InterceptedCall&)>;

// Puts `interceptor` in front of the kernel that `op` has for `key` by now, for good.
void intercept(const c10::OperatorHandle& op, c10::DispatchKey key, Interceptor interceptor);

} // namespace torchmdla::lazy
