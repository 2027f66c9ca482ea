// Calls of operators from the kernels of the acap device.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace torchmdla::acap {

// On tensors of another device, which autograd and autocast must not see: they have had their turn.
inline void call_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset);
  op.callBoxed(stack);
}

} // namespace torchmdla::acap
