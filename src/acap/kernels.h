// The kernels of the acap device.
#pragma once

namespace torchmdla::acap {

// Registers them for the dispatch key PrivateUse1; once in a process.
void register_kernels();

} // namespace torchmdla::acap
