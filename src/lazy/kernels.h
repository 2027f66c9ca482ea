// Kernels of the lazy device where PyTorch's own are wrong or none.
#pragma once

namespace torchmdla::lazy {

// Puts them in place of PyTorch's, which must be registered already. Called once.
void register_kernels();

} // namespace torchmdla::lazy
