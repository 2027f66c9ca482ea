// Calls that run at once, on the CPU.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace torchmdla::lazy {

// Counted as PyTorch counts its own fallbacks.
void count_eager(const c10::OperatorHandle& op);

} // namespace torchmdla::lazy
