// The kernels of the acap device.
#pragma once

namespace torchmdla::acap {

// Register them for the dispatch key PrivateUse1. Call this once in a process.
void register_kernels();

} // namespace torchmdla::acap
