// Alias analysis: PyTorch's analysis, extended by aliases that operator schemas do not declare.
#pragma once

#include "graph_values.h"

#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/ir/ir.h>

#include <memory>
#include <vector>

namespace torchmdla {

// Return whether a result of `node` may be an argument, or a view of one, although the schema
// declares it as new.
bool may_return_argument(const torch::jit::Node* node);

// Aliases in a graph. The graph must not change while this is in use.
class Aliases {
public:
  explicit Aliases(const std::shared_ptr<torch::jit::Graph>& graph);

  // Return whether some node writes to the memory of a value, or of a result of `node`.
  bool has_writers(const torch::jit::Value* value) const;
  bool has_output_writers(const torch::jit::Node* node) const;

  // `declared` is PyTorch's analysis. `joined` holds the written values that operators or loops
  // alias because they may return their arguments. Few programs have such values, so all of them
  // count as one memory.
  const torch::jit::AliasDb& declared() const { return declared_; }
  const torch::jit::ValueSet& joined() const { return joined_; }

private:
  bool are_joined(const torch::jit::ValueSet& values) const;

  torch::jit::AliasDb declared_;
  torch::jit::ValueSet joined_;
};

} // namespace torchmdla
