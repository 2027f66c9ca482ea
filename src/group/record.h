// Record of one eager run of a group, node by node, with the type of every value.
#pragma once

#include "runtime/quantisation.h"

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/ScalarType.h>
#include <torch/csrc/jit/ir/ir.h>

#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace torchmdla {

// Observed type of a tensor. The dtype of a quantised tensor is that of its integers.
struct TensorMeta {
  c10::ScalarType dtype;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  std::optional<Quantisation> quantisation = std::nullopt;
  // Number of bits that are enough for the values of an int8 weight; 0 if all 8 are needed.
  int64_t bits = 0;
};

// Types of a list's tensors; nullopt for an undefined tensor.
using TensorMetas = std::vector<std::optional<TensorMeta>>;

struct RecordedValue {
  std::string name; // unique in the graph
  std::variant<TensorMeta, TensorMetas, c10::IValue> value;
};
using Record = std::vector<RecordedValue>; // the graph's inputs come first

// Run `graph`, which has no inner blocks, on the inputs on top of the stack. Replace them by the
// outputs and return the record. Errors are those of the eager kernels.
Record run_and_record(torch::jit::Graph& graph, torch::jit::Stack& stack);

// Run `graph` in the same way, and return the seconds of each node.
std::vector<double> time_nodes(torch::jit::Graph& graph, torch::jit::Stack& stack);

} // namespace torchmdla
