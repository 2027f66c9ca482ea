// Gradients of groups that run compiled: the autograd nodes of their results.
//
// Code for calls without gradients keeps no activations. If backward reaches such a call, its
// autograd node runs the group's subgraph again, with gradients, on the saved inputs, and
// differentiates that run. Backward costs one forward run more than PyTorch's own, so a group for
// which backward is expected runs the program of a training step (training.h). The node then keeps
// activations, and runs the subgraph again only for gradients that the program does not compute.
#pragma once

#include "subgraph.h"
#include "training_program.h"

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace torchmdla {

// Return whether autograd records computations on these inputs.
bool needs_gradients(c10::ArrayRef<c10::IValue> inputs);

// Return whether an autograd node may save these inputs instead of the tensors that eager PyTorch
// saves. Hooks on saved tensors must see eager's (non-reentrant checkpoints use such hooks).
bool may_save(c10::ArrayRef<c10::IValue> inputs);

// One entry for each value, or each element of a list of tensors: whether it requires grad.
using GradientFlags = c10::SmallVector<bool, 64>;
GradientFlags requires_grad(c10::ArrayRef<c10::IValue> values);

// Flags of the outputs of a specialisation that require grad, by the flags of its inputs. They are
// observed in eager runs. Thread-safe.
class OutputGradients {
public:
  std::shared_ptr<const GradientFlags> find(const GradientFlags& inputs) const;
  void add(const GradientFlags& inputs, const GradientFlags& outputs);

private:
  struct Observation {
    GradientFlags inputs, outputs;
    std::shared_ptr<const Observation> next;
  };
  std::atomic<std::shared_ptr<const Observation>> newest_;
};

// Outputs that receive gradients in the backward of calls of one kind. Thread-safe.
class UsedOutputs {
public:
  // Return the outputs that received gradients so far, or nullopt before the first backward.
  std::optional<GradientFlags> flags() const;

  // Add an output to which a gradient came in a backward that eager operators recorded.
  void add(size_t output);

  // Note that a backward was expected from other outputs.
  void correct(const GradientFlags& used);

  // Return whether corrections are rare.
  bool is_stable() const;

private:
  mutable std::mutex mutex_; // guards the members below
  std::optional<GradientFlags> flags_;
  int corrections_ = 0;
};

// Prediction of whether backward will come for the next call, from the calls so far. The first call
// is assumed to be a training call.
class BackwardPredictor {
public:
  // Count a call that needs gradients. Return whether backward is expected for it.
  bool count_call() const;

  void count_backward() const;

  // Count a later backward through these results, and note in `used` which of them it reaches.
  void add_backward_hooks(c10::ArrayRef<c10::IValue> results,
                          const std::shared_ptr<UsedOutputs>& used = nullptr) const;

private:
  // Number of further calls that may come without a backward. Shared, because nodes outlive groups.
  std::shared_ptr<std::atomic<int64_t>> credit_ = std::make_shared<std::atomic<int64_t>>(1);
};

// The autograd node of one call.
class GroupBackward : public torch::autograd::Node {
public:
  GroupBackward(std::shared_ptr<Subgraph> subgraph, c10::ArrayRef<c10::IValue> inputs,
                BackwardPredictor predictor);

  // Make the outputs that `flags` marks results of this node.
  void set_history(std::span<c10::IValue> outputs, const GradientFlags& flags);

  // Circumstances of a call of a training program.
  struct Circumstances {
    std::shared_ptr<UsedOutputs> used;
    GradientFlags expected;  // the outputs for which the program was compiled
    at::Tensor random_state; // before the forward; undefined if it drew no numbers
  };

  // Run the backward of `program` where possible. Its forward had these `inputs` and `results`. The
  // outputs must have their history.
  void use_program(std::shared_ptr<const TrainingProgram> program, Circumstances circumstances,
                   const torch::autograd::variable_list& inputs,
                   const torch::autograd::variable_list& results);

  std::string name() const override { return "GroupBackward"; }
  void release_variables() override;

protected:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;

private:
  struct Input {
    enum class Kind { tensor, tensors, other } kind;
    c10::IValue other;
    size_t elements = 0; // length of a list of tensors
  };

  // Arguments of the subgraph's second run.
  struct Recomputation {
    torch::jit::Stack stack;
    torch::autograd::variable_list differentiable; // the inputs that have an edge
  };

  // What the backward of a training program needs.
  struct Compiled {
    std::shared_ptr<const TrainingProgram> program;
    Circumstances circumstances;
    std::vector<torch::autograd::SavedVariable> results; // those saved that are not inputs
    std::vector<at::Tensor> written;                     // inputs that the program writes to
  };

  void save(const at::Tensor& tensor);
  torch::autograd::variable_list unpack_inputs();
  Recomputation unpack(bool create_graph);
  GradientFlags used_outputs(const torch::autograd::variable_list& gradients) const;
  torch::autograd::variable_list run_program(torch::autograd::variable_list gradients);
  torch::autograd::variable_list recompute(torch::autograd::variable_list gradients,
                                           bool create_graph);

  const std::shared_ptr<Subgraph> subgraph_;
  const BackwardPredictor predictor_;
  std::vector<Input> inputs_;
  std::vector<torch::autograd::SavedVariable> tensors_; // all inputs, in order; under mutex_
  std::vector<bool> differentiable_;                    // whether each of tensors_ requires grad
  std::vector<size_t> outputs_;                         // indices of the outputs that require grad
  std::optional<Compiled> compiled_;                    // its saved results are under mutex_
};

} // namespace torchmdla
