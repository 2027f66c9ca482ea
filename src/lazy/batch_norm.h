// Running statistics on the lazy device.
#pragma once

namespace torchmdla::lazy {

// In training `native_batch_norm` writes the running statistics, which its schema does not tell, so
// that functionalisation loses the writes. After this they are seen. To be called once.
void register_batch_norm();

} // namespace torchmdla::lazy
