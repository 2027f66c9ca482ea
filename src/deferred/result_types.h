// The types of a call's results, for devices that write calls down instead of running them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <vector>

namespace torchmdla {

// The results of a call, elements of lists one by one, undefined where they are.
using Results = std::vector<at::Tensor>;

// Stands in a call for a tensor of a device.
using StandIn = at::Tensor (*)(const at::Tensor& tensor);

// A meta tensor of the same type.
at::Tensor meta_of(const at::Tensor& tensor);

// Zeros on the CPU that lie in memory as `tensor` does.
at::Tensor zeros_of(const at::Tensor& tensor);

// What a call gives on `device`; none where it fails, for whatever reason, or has other results.
// Numbers are what they are: they go with tensors of any device.
std::optional<Results> call_on(c10::Device device, const c10::OperatorHandle& op,
                               const std::vector<c10::IValue>& arguments, StandIn stand_in);

// The results as meta tensors, with the sizes and dtypes that they have on the CPU; none where meta
// kernels do not tell, and the CPU is to say what is wrong.
std::optional<Results> infer_types(const c10::OperatorHandle& op,
                                   const std::vector<c10::IValue>& arguments);

using Inference = std::optional<Results> (*)(const c10::OperatorHandle& op,
                                             const std::vector<c10::IValue>& arguments);

// What `infer` says, once for each combination of what types of results depend on: programs repeat
// themselves, and some meta kernels are in Python.
std::optional<Results> infer_once(Inference infer, const c10::OperatorHandle& op,
                                  const std::vector<c10::IValue>& arguments);

} // namespace torchmdla
