// Values that a graph computes only from a module's attributes. These are modes (`self.training`)
// and options that decide which nodes run, and they rarely change between calls. Whether a call
// passes an optional argument is such an option.
#pragma once

#include "graph_values.h"

#include <torch/csrc/jit/ir/ir.h>

#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

namespace torchmdla {

// Names of the attributes that a graph may set.
struct MutatedAttributes {
  std::unordered_set<std::string> names;
  bool any = false; // a call may set any attribute

  bool contains(const std::string& name) const { return any || names.count(name) != 0; }
};
MutatedAttributes mutated_attributes(const torch::jit::Graph& graph);

// Move reads of attributes out of the branches of a `prim::If`, in front of it. Attributes that the
// graph may set (`mutated`) stay. Reading an attribute has no effect and cannot fail.
void hoist_attributes(const std::shared_ptr<torch::jit::Graph>& graph,
                      const MutatedAttributes& mutated);

// Return the names of attributes that norms use as running mean or variance. Their kernels update
// these tensors without incrementing their version.
std::unordered_set<std::string> running_statistics(const torch::jit::Block* block);

// Return whether all uses of a value are as running mean or variance of a norm. Code that compiles
// such a use knows that the tensor's version does not change.
bool is_only_a_running_statistic(const torch::jit::Value* value);

// Return the numbers, booleans, strings and Nones of a graph's `block` that come from attributes.
// They are computed without effects, and only from constants, module attributes and tests `argument
// is None`.
ValueSet values_from_attributes(const torch::jit::Block* block);

// Add the nodes that compute `value`, including its own node, to `producers`. Return the nodes that
// were added.
std::vector<const torch::jit::Node*> add_producers(const torch::jit::Value* value,
                                                   NodeSet& producers);

} // namespace torchmdla
