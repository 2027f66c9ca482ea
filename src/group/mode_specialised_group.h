// Run function of a group with conditional nodes. It has a variant for each mode of the module.
//
// Flags are the boolean inputs that decide the conditions (`self.training`, an option of a module).
// A variant is the group's subgraph for given values of its flags. Branches that the flags decide
// are removed, and the rest is grouped again. In eval mode the variant is one compiled group. A
// variant for training has groups around the operators that only PyTorch runs.
#pragma once

#include "compilation_group.h"
#include "fusion/fusion_pass.h"
#include "fusion/input_paths.h"
#include "group_autograd.h"
#include "script_subgraph.h"
#include "training.h"

#include <torch/csrc/jit/ir/ir.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
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
    std::shared_ptr<CompilationGroup> group; // the whole variant; null if it is not one group
    // The members below are used if `group` is null.
    std::shared_ptr<ScriptSubgraph> subgraph; // has all inputs of the group
    Subgraph::Division division;
    BackwardPredictor backward_predictor;
    std::unique_ptr<TrainingSteps> training_steps;
  };

  // Maximum number of variants. Modules have few modes; further ones share a variant that keeps its
  // branches.
  static constexpr size_t max_variants = 32;

  Flags flags(const torch::jit::Stack& stack) const;
  Variant& variant(const Flags& flags);
  Variant* find(const Flags& flags) const;
  std::unique_ptr<Variant> make_variant(const Flags& flags) const;
  std::unique_ptr<Variant> group_again(const std::shared_ptr<torch::jit::Graph>& graph,
                                       OpenConditions open_conditions) const;

  const std::shared_ptr<torch::jit::Graph> graph_;
  const std::string device_;
  const std::vector<int64_t> parameters_;
  const bool written_around_;
  const std::vector<int64_t> varying_;
  const InputPaths inputs_;
  const std::vector<size_t> flag_inputs_; // indices of the inputs that are flags
  const InputPaths flags_;

  // Readers look at the first `num_variants_` without a lock; the rest is guarded by mutex_.
  std::array<std::unique_ptr<Variant>, max_variants> variants_;
  std::atomic<size_t> num_variants_{0};
  std::unique_ptr<Variant> generic_; // the variant for any flags
  std::mutex mutex_;
};

} // namespace torchmdla
