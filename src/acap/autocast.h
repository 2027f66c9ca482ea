// Automatic mixed precision on the acap device.
#pragma once

namespace torchmdla::acap {

// Register PyTorch's own policies for the dispatch key AutocastPrivateUse1. Call this once in a
// process.
void register_autocast();

} // namespace torchmdla::acap
