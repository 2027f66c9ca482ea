// Calls that run immediately on the CPU.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace torchmdla::lazy {

// Count a call, in the same way as PyTorch counts its own fallbacks.
void count_eager(const c10::OperatorHandle& op);

} // namespace torchmdla::lazy
