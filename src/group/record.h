// One run of a group by eager kernels, node by node, that remembers the type of every value.
#pragma once

#include "support/quantisation.h"

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/ScalarType.h>
#include <torch/csrc/jit/ir/ir.h>

#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace torchmdla {

// The type of a tensor as it was seen; of one that is quantised the dtype of its integers.
struct TensorMeta {
  c10::ScalarType dtype;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  std::optional<Quantisation> quantisation = std::nullopt;
  // Of a weight of int8: how many bits were enough for what it held, 0 if not fewer than 8.
  int64_t bits = 0;
};

// Of a list; none for an undefined tensor.
using TensorMetas = std::vector<std::optional<TensorMeta>>;

struct RecordedValue {
  std::string name; // unique in the graph
  std::variant<TensorMeta, TensorMetas, c10::IValue> seen;
};
using Record = std::vector<RecordedValue>; // the graph's inputs come first

// Runs `graph` (no inner blocks) on the inputs on top of the stack, replaces them by the outputs
// and returns what was seen. Errors are those of the eager kernels.
Record run_and_record(torch::jit::Graph& graph, torch::jit::Stack& stack);

} // namespace torchmdla
