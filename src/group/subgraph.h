// What a group computes, in PyTorch's own operators: its fallback, and what compiling starts from.
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

// Every function takes the group's inputs from the top of the stack and pushes its outputs. Any
// thread may call, without the GIL. They throw what PyTorch throws.
class Subgraph {
public:
  Subgraph() = default;
  Subgraph(const Subgraph&) = delete;
  Subgraph& operator=(const Subgraph&) = delete;
  virtual ~Subgraph() = default;

  virtual void run(torch::jit::Stack& stack) = 0;

  // Node by node, remembering what was seen.
  virtual Record run_and_record(torch::jit::Stack& stack) = 0;

  // For inputs of which gradients are asked. False, with the stack as it was, where there is no
  // better way than `run`.
  virtual bool run_differentiable(torch::jit::Stack& stack) = 0;

  // What people call an input.
  virtual std::string input_name(size_t input) const { return "input " + std::to_string(input); }

  // Empty where they are known only in a call.
  virtual std::vector<c10::TypePtr> input_types() const { return {}; }

  // How many outputs each call pushes; nullopt where whoever calls looks for itself.
  virtual std::optional<size_t> num_outputs() const = 0;

  // By which packages know it: null where nothing packaged can be for it. `parameters` are the
  // indices of inputs that are weights.
  virtual std::optional<Structure> structure(const std::string& device,
                                             const std::vector<int64_t>& parameters) const = 0;

  // The tensor that node number `node`, a constant, holds, or its list has at `element`.
  virtual at::Tensor constant(size_t node, std::optional<size_t> element) const = 0;

  // Whether a call with this record met what the group's nodes were taken on the condition of.
  virtual bool conditions_hold(const Record& record) const = 0;

  // Runs the subgraph in groups of its own.
  using Division = std::function<void(torch::jit::Stack& stack)>;

  // Groups around the nodes numbered in `left_out` and those that were taken on a condition. Empty
  // where nothing is left for groups. `parameters` are the indices of inputs that are weights.
  virtual Division divide(const std::vector<size_t>& left_out,
                          const std::vector<int64_t>& parameters) = 0;
};

} // namespace torchmdla
