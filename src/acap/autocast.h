// Automatic mixed precision on the acap device.
#pragma once

namespace torchmdla::acap {

// Registers PyTorch's own policies for the dispatch key AutocastPrivateUse1; once in a process.
void register_autocast();

} // namespace torchmdla::acap
