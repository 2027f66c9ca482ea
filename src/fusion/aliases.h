// Who shares memory: PyTorch's alias analysis, and what the schemas of operators do not tell it.
#pragma once

#include "graph_values.h"

#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/ir/ir.h>

#include <memory>
#include <vector>

namespace torchmdla {

// Whether a result of `node` may be an argument, or a view of one, though the schema says that it
// is new.
bool may_return_argument(const torch::jit::Node* node);

// Of a graph that stays as it is.
class Aliases {
public:
  explicit Aliases(const std::shared_ptr<torch::jit::Graph>& graph);

  // Whether something writes to the memory of a value, or of a result of `node`.
  bool has_writers(const torch::jit::Value* value) const;
  bool has_output_writers(const torch::jit::Node* node) const;

  // PyTorch's analysis, and what is written to and joined by operators or loops that may return
  // their arguments: few programs have any, so all of that counts as one memory.
  const torch::jit::AliasDb& declared() const { return declared_; }
  const torch::jit::ValueSet& joined() const { return joined_; }

private:
  bool are_joined(const torch::jit::ValueSet& values) const;

  torch::jit::AliasDb declared_;
  torch::jit::ValueSet joined_;
};

} // namespace torchmdla
