// Where a group in a TorchScript graph finds its inputs: among the values that its node is given,
// or in the attributes of modules among these.
//
// A module that is not frozen has hundreds of parameters. PyTorch's interpreter reads them one
// instruction at a time, each waiting for memory that is far from any cache; a group reads all of
// them at once.
#pragma once

#include "attributes.h"

#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/jit/ir/ir.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace torchmdla {

// Of a group's node, for each input of its subgraph: "2" is the node's input 2, "0.conv.weight" an
// attribute of a submodule of the module that is its input 0. A node without it gives its inputs in
// order.
c10::Symbol paths_attribute();

// Gives groups of this kind the modules instead of what the graph reads from their attributes,
// where nothing in the graph, which sets those in `set`, could set these.
void read_attributes_in_groups(const std::shared_ptr<torch::jit::Graph>& graph,
                               c10::Symbol group_kind, const AttributesSet& set);

class InputPaths {
public:
  // Of a group that is given its inputs.
  explicit InputPaths(size_t num_inputs);

  explicit InputPaths(const torch::jit::Node* group);

  // Those of some of the inputs, from the same values.
  InputPaths of(const std::vector<size_t>& inputs) const;

  // How many values the group is given.
  size_t num_values() const { return num_values_; }

  size_t num_inputs() const { return inputs_.size(); }

  // Puts the inputs in the place of the values on the stack.
  void expand(torch::jit::Stack& stack) const;

  // The inputs, found from the values on the stack, which stays as it is.
  using Inputs = c10::SmallVector<c10::IValue, 64>;
  Inputs find(const torch::jit::Stack& stack) const;

private:
  // A slot of a module, or where `module` is `given`, a value.
  struct Place {
    size_t module;
    size_t slot;
    bool operator==(const Place&) const = default;
  };
  static constexpr size_t given = SIZE_MAX;

  size_t module_at(const Place& place);
  Place copied(const Place& place, const InputPaths& from);
  template <class Result> void append(c10::ArrayRef<c10::IValue> values, Result& result) const;

  size_t num_values_;
  bool direct_ = true;         // the inputs are the values, in order
  std::vector<Place> modules_; // each after the one that it is an attribute of
  std::vector<Place> inputs_;
};

} // namespace torchmdla
