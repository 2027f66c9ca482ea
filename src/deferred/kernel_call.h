// Calls of operators from a device's kernels.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace torchmdla {

// Scope in which autograd and autocast ignore tensors of another device, because they have already
// processed the call.
class BelowAutograd {
  const c10::impl::ExcludeDispatchKeyGuard below_{
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset};
};

// Call an operator on tensors of another device.
inline void call_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const BelowAutograd below;
  op.callBoxed(stack);
}

} // namespace torchmdla
