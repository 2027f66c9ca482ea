// Traits of operators for the acap device, derived from their schemas.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <vector>

namespace torchmdla::acap {

enum class OperatorKind {
  functional, // becomes a node of the graph
  mutating,   // its functional twin becomes a node, and the results are written
  view,       // returns a tensor that shares its input's storage
  other       // runs on the CPU
};

struct OperatorTraits {
  OperatorKind kind;
  std::optional<c10::OperatorHandle> functional; // the twin of a mutating op, with the same inputs
  std::vector<size_t> written;                   // indices of written arguments, in order
  std::vector<size_t> outs; // those of `written` that the functional twin does not have
  size_t fresh_results = 0; // number of the twin's results that precede the written ones
};

// Return the traits of any operator. They are computed once for each operator.
const OperatorTraits& traits_of(const c10::OperatorHandle& op);

// Return the overload that takes a number in place of the tensor `argument` and is otherwise the
// same.
std::optional<c10::OperatorHandle> scalar_twin(const c10::OperatorHandle& op, size_t argument);

// Return an op that gives the same result for tensors of any strides. Some ops are valid only for
// the strides at recording time; all others are returned unchanged.
c10::OperatorHandle for_any_strides(const c10::OperatorHandle& op);

bool is_random(const c10::OperatorHandle& op);

} // namespace torchmdla::acap
