// Subgraph of a group in PyTorch's own operators: its fallback, and the input of compilation.
#pragma once

#include "record.h"
#include "structure.h"

#include <ATen/core/stack.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace torchmdla {

// Interface of a subgraph. The run functions pop the group's inputs from the stack and push its
// outputs. Any thread may call the functions, without the GIL. They throw PyTorch's exceptions.
class Subgraph {
public:
  Subgraph() = default;
  Subgraph(const Subgraph&) = delete;
  Subgraph& operator=(const Subgraph&) = delete;
  virtual ~Subgraph() = default;

  virtual void run(torch::jit::Stack& stack) = 0;

  // Run node by node and return the record of all values.
  virtual Record run_and_record(torch::jit::Stack& stack) = 0;

  // Run with inputs that require gradients. Return false, with the stack unchanged, if there is no
  // better strategy than `run`.
  virtual bool run_differentiable(torch::jit::Stack& stack) = 0;

  // Return whether something outside of the subgraph writes to its inputs or outputs.
  virtual bool is_written_around() const { return false; }

  // Run node by node and return the seconds of each node. Return nothing if that is not possible.
  virtual std::vector<double> time_nodes(torch::jit::Stack& stack) = 0;

  // Return whether a run may write to the group's inputs.
  virtual bool writes_inputs() const = 0;

  // Return the name of an input, for messages.
  virtual std::string input_name(size_t input) const { return "input " + std::to_string(input); }

  // Return the types of the inputs; empty if they are known only in a call.
  virtual std::vector<c10::TypePtr> input_types() const { return {}; }

  // Return the number of outputs that each call pushes, or nullopt if the caller must count them.
  virtual std::optional<size_t> num_outputs() const = 0;

  // Return the structure by which packages know the subgraph, or nullopt if packages cannot have
  // it. `parameters` are the indices of inputs that are weights.
  virtual std::optional<Structure> structure(const std::string& device,
                                             const std::vector<int64_t>& parameters) const = 0;

  // Return the tensor in constant node number `node`, or the tensor at `element` of its list.
  virtual at::Tensor constant(size_t node, std::optional<size_t> element) const = 0;

  // Return whether a call with this record meets the conditions of all nodes of the group.
  virtual bool conditions_hold(const Record& record) const = 0;

  // Function that runs the subgraph in groups of its own.
  using Division = std::function<void(torch::jit::Stack& stack)>;

  // Return groups around the nodes numbered in `excluded_nodes` and the conditional nodes. Return
  // null if no node is left for groups. `parameters` are the indices of inputs that are weights.
  virtual Division divide(const std::vector<size_t>& excluded_nodes,
                          const std::vector<int64_t>& parameters) = 0;
};

} // namespace torchmdla
