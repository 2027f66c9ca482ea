// What can be done with an operator on the acap device, from its schema.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <vector>

namespace torchmdla::acap {

enum class OperatorKind {
  functional, // a node of the graph
  mutating,   // its functional twin is a node, whose results are written
  view,       // a tensor that shares its input's storage
  other       // runs on the CPU
};

struct OperatorTraits {
  OperatorKind kind;
  std::optional<c10::OperatorHandle> functional; // of a mutating one, with the same inputs
  std::vector<size_t> written;                   // arguments, of a mutating one, in order
  std::vector<size_t> outs; // those of them that the functional twin does not have
  size_t fresh_results = 0; // of the functional twin's results, those that come before the written
};

// Of any operator; computed once for each.
const OperatorTraits& traits_of(const c10::OperatorHandle& op);

// The overload that takes a number where `op` takes the tensor `argument`, otherwise the same.
std::optional<c10::OperatorHandle> scalar_twin(const c10::OperatorHandle& op, size_t argument);

// Of ops that promise what only the strides at the time of recording allow, those that do the same
// to tensors that lie in memory in any way; other ops as they are.
c10::OperatorHandle for_any_strides(const c10::OperatorHandle& op);

bool is_random(const c10::OperatorHandle& op);

} // namespace torchmdla::acap
