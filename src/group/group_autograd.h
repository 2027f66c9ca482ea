// Gradients of groups that run compiled: the autograd nodes of their results.
//
// Compiled code keeps no activations. If backward reaches a call, its autograd node runs the
// group's subgraph again, with gradients, on the saved inputs, and differentiates that run. A call
// therefore costs as much as without gradients. Backward costs one forward run more than PyTorch's
// own, so a group for which backward is expected runs as PyTorch runs it.
#pragma once

#include "subgraph.h"

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

// Prediction of whether backward will come for the next call, from the calls so far. The first call
// is assumed to be a training call.
class BackwardPredictor {
public:
  // Count a call that needs gradients. Return whether backward is expected for it.
  bool count_call() const;

  void count_backward() const;

  // Count a later backward through these results.
  void add_backward_hooks(c10::ArrayRef<c10::IValue> results) const;

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

  void save(const at::Tensor& tensor);
  Recomputation unpack(bool create_graph);

  const std::shared_ptr<Subgraph> subgraph_;
  const BackwardPredictor predictor_;
  std::vector<Input> inputs_;
  std::vector<torch::autograd::SavedVariable> tensors_; // all inputs, in order; under mutex_
  std::vector<bool> differentiable_;                    // whether each of tensors_ requires grad
  std::vector<size_t> outputs_;                         // indices of the outputs that require grad
};

} // namespace torchmdla
