// Paths of a group's inputs in a TorchScript graph: inputs of its node, or attributes of modules
// among these.
//
// A module that is not frozen has hundreds of parameters. PyTorch's interpreter reads them one
// instruction at a time, and each read waits for memory that is not in a cache. A group reads all
// of them at once.
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

// Attribute of a group's node with one path for each input of its subgraph. "2" is the node's input
// 2. "0.conv.weight" is an attribute of a submodule of the module that is the node's input 0. If
// the attribute is absent, the node's inputs are the subgraph's inputs, in order.
c10::Symbol paths_attribute();

// Pass modules to groups of this kind instead of attributes that the graph reads from the modules.
// Attributes that the graph may set (`mutated`) are excluded.
void read_attributes_in_groups(const std::shared_ptr<torch::jit::Graph>& graph,
                               c10::Symbol group_kind, const MutatedAttributes& mutated);

class InputPaths {
public:
  // Construct the paths of a group whose node has the subgraph's inputs.
  explicit InputPaths(size_t num_inputs);

  explicit InputPaths(const torch::jit::Node* group);

  // Return the paths of some of the inputs, starting from the same values.
  InputPaths of(const std::vector<size_t>& inputs) const;

  // Return the number of inputs of the group's node.
  size_t num_values() const { return num_values_; }

  size_t num_inputs() const { return inputs_.size(); }

  // Replace the values on the stack by the inputs.
  void expand(torch::jit::Stack& stack) const;

  // Return the inputs that the values on the stack lead to. The stack does not change.
  using Inputs = c10::SmallVector<c10::IValue, 64>;
  Inputs find(const torch::jit::Stack& stack) const;

private:
  // Slot of a module, or index of a value if `module` is `node_input`.
  struct Place {
    size_t module;
    size_t slot;
    bool operator==(const Place&) const = default;
  };
  static constexpr size_t node_input = SIZE_MAX;

  size_t module_at(const Place& place);
  Place copy_place(const Place& place, const InputPaths& from);
  template <class Result> void append(c10::ArrayRef<c10::IValue> values, Result& result) const;

  size_t num_values_;
  bool direct_ = true;         // the inputs are the values, in order
  std::vector<Place> modules_; // each after the module that it is an attribute of
  std::vector<Place> inputs_;
};

} // namespace torchmdla
