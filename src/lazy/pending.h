// The lazy tensors that are still to be computed.
#pragma once

#include <torch/csrc/lazy/core/tensor.h>

#include <memory>
#include <vector>

namespace torchmdla::lazy {

// To be told of every tensor: by the thread that makes it, and by any when nobody has it any more.
void note_made(const std::shared_ptr<torch::lazy::LazyTensor::Data>& tensor);
void note_gone(const torch::lazy::LazyTensor::Data& tensor);

// Whether a computation says what the tensor is, and has not run. Inputs and constants are no
// computations.
bool is_pending(const torch::lazy::LazyTensor::Data& tensor);

// The pending tensors of `tensor`'s device that this thread has made and that share a computation
// with `tensor`, which is pending: itself, too. In the order in which they were made.
std::vector<torch::lazy::LazyTensorPtr> pending_with(const torch::lazy::LazyTensor::Data& tensor);

} // namespace torchmdla::lazy
