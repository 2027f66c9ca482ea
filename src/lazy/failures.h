// Graphs that fail while they run.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/csrc/jit/ir/ir.h>

#include <exception>
#include <variant>
#include <vector>

namespace torchmdla::lazy {

// A value, or the error that is the reason why there is none.
using Outcome = std::variant<c10::IValue, std::exception_ptr>;

// The value. Throws the error.
const c10::IValue& value_of(const Outcome& outcome);

// The first error; null where all are values.
std::exception_ptr first_error(const std::vector<Outcome>& outcomes);

// The outputs of a flat graph of functional ATen calls, call by call: one that fails costs the
// values that depend on it, and no other.
std::vector<Outcome> run_apart(const torch::jit::Graph& graph, const std::vector<Outcome>& inputs);

// PyTorch keeps what `ExecuteComputation` throws, and throws it once more where the device is next
// used, for whatever. So an error is noted there, and raised by the same thread on its way back to
// the user. The first one that is noted counts.
void note_error(std::exception_ptr error);

// Throws the error that this thread has noted, if any, and forgets it.
void raise_noted_error();

} // namespace torchmdla::lazy
