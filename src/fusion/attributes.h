// What a graph computes from a module's attributes alone: the modes (`self.training`) and options
// that decide which of its nodes run, and that hardly ever change from call to call. Whether a call
// gives an optional argument is such an option.
#pragma once

#include "graph_values.h"

#include <torch/csrc/jit/ir/ir.h>

#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

namespace torchmdla {

// The attributes that a graph may set, by name.
struct AttributesSet {
  std::unordered_set<std::string> names;
  bool any = false; // a call may set whatever it likes

  bool includes(const std::string& name) const { return any || names.count(name) != 0; }
};
AttributesSet attributes_set(const torch::jit::Graph& graph);

// Moves attributes that the branches of a `prim::If` read in front of it, where nothing in the
// graph, which sets those in `set`, could set them. Reading one has no effect and cannot fail.
void hoist_attributes(const std::shared_ptr<torch::jit::Graph>& graph, const AttributesSet& set);

// The names of attributes that norms take as running mean or variance. Their kernels update them
// without giving the tensors another version.
std::unordered_set<std::string> running_statistics(const torch::jit::Block* block);

// Whether norms take a value as running mean or variance, and nothing else uses it. Who compiles
// such a use knows that the tensor is unversioned.
bool is_only_a_running_statistic(const torch::jit::Value* value);

// The numbers, booleans, strings and Nones of a graph's `block` that are computed from constants,
// attributes of the module and answers to `argument is None` alone, without effects.
ValueSet values_from_attributes(const torch::jit::Block* block);

// Adds the nodes that compute such a value to `makers`, its own one included. Returns those that
// were not in there.
std::vector<const torch::jit::Node*> add_makers(const torch::jit::Value* value, NodeSet& makers);

} // namespace torchmdla
