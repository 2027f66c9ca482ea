// Lazy tensors that are not computed yet.
#pragma once

#include <torch/csrc/lazy/core/tensor.h>

#include <memory>
#include <vector>

namespace torchmdla::lazy {

// Record the creation and destruction of a tensor. Call `register_tensor` on the thread that
// creates it; `unregister_tensor` may run on any thread.
void register_tensor(const std::shared_ptr<torch::lazy::LazyTensor::Data>& tensor);
void unregister_tensor(const torch::lazy::LazyTensor::Data& tensor);

// Return whether the tensor is defined by a computation that has not run. Inputs and constants are
// not computations.
bool is_pending(const torch::lazy::LazyTensor::Data& tensor);

// Return the pending tensors that share a computation with the pending `tensor`, including itself.
// They are on its device and were made by this thread. They are in order of creation.
std::vector<torch::lazy::LazyTensorPtr> pending_with(const torch::lazy::LazyTensor::Data& tensor);

} // namespace torchmdla::lazy
