// Kernels of the lazy device for operators whose PyTorch kernels are wrong or missing.
#pragma once

namespace torchmdla::lazy {

// Replace PyTorch's kernels, which must already be registered. Call this once.
void register_kernels();

} // namespace torchmdla::lazy
