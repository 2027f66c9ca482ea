// Interfaces that PyTorch requires of a device: memory, guards, hooks.
#pragma once

namespace torchmdla::acap {

// Register the interfaces for PrivateUse1. Call this once in a process.
void register_device();

} // namespace torchmdla::acap
