// Result types of calls, for devices that record calls instead of running them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <vector>

namespace torchmdla {

// Results of a call. Elements of lists are listed one by one; undefined results are undefined
// tensors.
using Results = std::vector<at::Tensor>;

// Function that returns a substitute for a device's tensor in a call.
using StandIn = at::Tensor (*)(const at::Tensor& tensor);

// Return a meta tensor of the same type.
at::Tensor meta_of(const at::Tensor& tensor);

// Return whether `op` computes each element from the elements in the same place.
bool is_pointwise(const c10::OperatorHandle& op);

// Return zeros on the CPU with the strides of `tensor`.
at::Tensor zeros_of(const at::Tensor& tensor);

// Return the results of a call on `device`, or nullopt if it fails or has other kinds of results.
// 0-d CPU tensors are passed unchanged, because they combine with tensors of any device.
std::optional<Results> call_on(c10::Device device, const c10::OperatorHandle& op,
                               const std::vector<c10::IValue>& arguments, StandIn stand_in);

// Return the results as meta tensors, with the sizes and dtypes that they have on the CPU. Return
// nullopt if the meta kernel fails, or the CPU's kernel of a pointwise op rejects the dtypes; the
// CPU then reports the error.
std::optional<Results> infer_types(const c10::OperatorHandle& op,
                                   const std::vector<c10::IValue>& arguments);

using Inference = std::optional<Results> (*)(const c10::OperatorHandle& op,
                                             const std::vector<c10::IValue>& arguments);

// Return the result of `infer`, cached by all properties on which result types depend. Programs
// repeat calls, and some meta kernels are in Python.
std::optional<Results> infer_once(Inference infer, const c10::OperatorHandle& op,
                                  const std::vector<c10::IValue>& arguments);

} // namespace torchmdla
