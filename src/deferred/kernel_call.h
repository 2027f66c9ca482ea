// Calls of operators from kernels of a device.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace torchmdla {

// While it lives, tensors of another device are not seen by autograd and autocast: they have had
// their turn.
class BelowAutograd {
  const c10::impl::ExcludeDispatchKeyGuard below_{
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset};
};

// On tensors of another device.
inline void call_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const BelowAutograd below;
  op.callBoxed(stack);
}

} // namespace torchmdla
