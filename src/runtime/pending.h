// Results that a device still computes, or has only in its own memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace torchmdla {

// Functions of a device whose entry may return before its results are in host memory
// (docs/design/abi.md). `wait` is null for other devices.
struct AsynchronousCalls {
  int32_t (*wait)(void* result) = nullptr;
  void (*forget)(void* result) = nullptr;
  const char* (*fault)() = nullptr;
};

// A call whose results are pending. If the device fails in `wait`, `recover` returns the outputs
// that PyTorch's operators compute. It gets the text of the failure, and throws if that is not
// possible.
struct PendingCall {
  AsynchronousCalls device;
  std::function<torch::jit::Stack(const std::string& fault)> recover;
};

// Make a new tensor, output number `output` of a call, pending: the device has its content until
// `wait_for`. If the tensor is freed before, the device forgets the content.
void make_pending(const at::Tensor& tensor, std::shared_ptr<const PendingCall> call, size_t output);

// Return the functions of the device that has the content of a tensor's memory; null if it is in
// host memory.
const AsynchronousCalls* pending_device(const at::Tensor& tensor);

// Return when the content of the tensor's memory is in host memory. Throw if the device failed and
// PyTorch's operators cannot compute the tensor either. Several threads may wait for a tensor.
void wait_for(const at::Tensor& tensor);

// Wait for all tensors among values, and in lists among them.
void wait_for(c10::ArrayRef<c10::IValue> values);

} // namespace torchmdla
