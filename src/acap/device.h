// What PyTorch asks of a device: memory, guards, hooks.
#pragma once

namespace torchmdla::acap {

// Registers them for PrivateUse1; once in a process.
void register_device();

} // namespace torchmdla::acap
