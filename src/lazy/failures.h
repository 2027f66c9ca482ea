// Errors of graphs at run time.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/csrc/jit/ir/ir.h>

#include <exception>
#include <variant>
#include <vector>

namespace torchmdla::lazy {

// A value, or the error that prevented its computation.
using Outcome = std::variant<c10::IValue, std::exception_ptr>;

// Return the value, or throw the error.
const c10::IValue& value_of(const Outcome& outcome);

// Return the first error, or null if all outcomes are values.
std::exception_ptr first_error(const std::vector<Outcome>& outcomes);

// Run a flat graph of functional ATen calls call by call and return its outputs. A call that fails
// affects only the values that depend on it.
std::vector<Outcome> run_call_by_call(const torch::jit::Graph& graph,
                                      const std::vector<Outcome>& inputs);

// Note an error, which the same thread raises on its way back to the user. PyTorch stores
// exceptions of `ExecuteComputation` and throws them again at the next use of the device, whatever
// that is. Noting avoids this. If several errors are noted, the first one is kept.
void record_error(std::exception_ptr error);

// Throw the error that this thread has noted, if any, and clear it.
void rethrow_recorded_error();

} // namespace torchmdla::lazy
