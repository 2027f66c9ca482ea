// Run function of a group with conditional nodes. It has a variant for each mode of the module.
//
// Flags are the boolean inputs that decide the conditions (`self.training`, an option of a module).
// A variant is the group's subgraph for given values of its flags. Branches that the flags decide
// are removed, and the rest is grouped again. In eval mode the variant is one compiled group. A
// variant for training has groups around the operators that only PyTorch runs.
#pragma once

#include "compilation_group.h"
#include "differentiable.h"
#include "fusion/input_paths.h"
#include "group_autograd.h"

#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/runtime/interpreter.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace torchmdla {

class ModeSpecialisedGroup {
public:
  explicit ModeSpecialisedGroup(const torch::jit::Node* node);

  // Pop the values from which the group finds its inputs, and push its outputs.
  void run(torch::jit::Stack& stack);

private:
  // Values of the flags, in order.
  using Flags = c10::SmallVector<bool, 64>;

  struct Variant {
    Flags flags;
    std::shared_ptr<torch::jit::Graph> graph; // ungrouped, with all inputs of the group
    std::shared_ptr<CompilationGroup> group;  // the whole variant; null if it is not one group
    std::optional<torch::jit::Code> grouped;  // set if `group` is null
    BackwardPredictor backward_predictor;     // used if `group` is null
    std::once_flag differentiable_once;
    std::optional<DifferentiableGraph> differentiable; // set under differentiable_once
    Variant* next = nullptr;
  };

  Flags flags(const torch::jit::Stack& stack) const;
  Variant& variant(const Flags& flags);
  Variant* find(const Flags& flags) const;
  std::unique_ptr<Variant> make_variant(const Flags& flags) const;
  std::unique_ptr<Variant> make_generic() const;
  void regroup(Variant& variant) const;
  void run_differentiable(Variant& variant, torch::jit::Stack& stack) const;

  const std::shared_ptr<torch::jit::Graph> graph_;
  const std::string device_;
  const std::string name_;
  const std::vector<int64_t> parameters_;
  const bool written_around_;
  const std::vector<int64_t> varying_;
  const InputPaths inputs_;
  const std::vector<size_t> flag_inputs_; // indices of the inputs that are flags
  const InputPaths flags_;

  // Readers walk the list from `newest_` without a lock; entries live as long as the group.
  std::atomic<Variant*> newest_{nullptr};
  std::mutex mutex_;
  std::vector<std::unique_ptr<Variant>> variants_; // guarded by mutex_
  std::unique_ptr<Variant> generic_;               // the variant for any flags; guarded by mutex_
};

} // namespace torchmdla
