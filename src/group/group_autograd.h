// Gradients of groups that run compiled: what autograd is told of their results.
//
// Compiled code keeps no activations. If backward comes for a call, its autograd node runs the
// group's subgraph again, with gradients, on the inputs that it saved, and goes back through that.
// So a call costs what it costs without gradients, and backward costs a forward run more than
// PyTorch's own: a group for which backward does come is therefore run as PyTorch runs it.
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

// Whether autograd follows what is computed from these.
bool needs_gradients(c10::ArrayRef<c10::IValue> inputs);

// Whether an autograd node may save these inputs in the place of what eager PyTorch saves. Hooks on
// saved tensors (non-reentrant checkpoints are made of them) must see eager's.
bool may_save(c10::ArrayRef<c10::IValue> inputs);

// One entry for each value, or each element of a list of tensors: whether it requires grad.
using GradientFlags = c10::SmallVector<bool, 64>;
GradientFlags requires_grad(c10::ArrayRef<c10::IValue> values);

// Which outputs of a specialisation require grad, by which of its inputs do: as seen in runs by
// eager ops. Any thread may ask and add.
class OutputGradients {
public:
  std::shared_ptr<const GradientFlags> find(const GradientFlags& inputs) const;
  void add(const GradientFlags& inputs, const GradientFlags& outputs);

private:
  struct Seen {
    GradientFlags inputs, outputs;
    std::shared_ptr<const Seen> next;
  };
  std::atomic<std::shared_ptr<const Seen>> newest_;
};

// Tells from the calls so far whether backward will come for the next. The first call is taken to
// be one of training.
class ExpectedBackward {
public:
  // Counts a call that needs gradients.
  bool count_call() const;

  void count_backward() const;

  // Has backward through these results counted.
  void watch(c10::ArrayRef<c10::IValue> results) const;

private:
  // How many calls may follow for which no backward comes. Nodes outlive groups.
  std::shared_ptr<std::atomic<int64_t>> credit_ = std::make_shared<std::atomic<int64_t>>(1);
};

// The autograd node of one call.
class GroupBackward : public torch::autograd::Node {
public:
  GroupBackward(std::shared_ptr<Subgraph> subgraph, c10::ArrayRef<c10::IValue> inputs,
                ExpectedBackward expected);

  // Makes the outputs that `flags` marks results of this node.
  void set_history(std::span<c10::IValue> outputs, const GradientFlags& flags);

  std::string name() const override { return "GroupBackward"; }
  void release_variables() override;

protected:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;

private:
  struct Input {
    enum class Kind { tensor, tensors, other } kind;
    c10::IValue other;
    size_t elements = 0; // of a list of tensors
  };

  // What the subgraph is run on again.
  struct Recomputation {
    torch::jit::Stack stack;
    torch::autograd::variable_list differentiable; // those of the inputs that have an edge
  };

  void save(const at::Tensor& tensor);
  Recomputation unpack(bool create_graph);

  const std::shared_ptr<Subgraph> subgraph_;
  const ExpectedBackward expected_;
  std::vector<Input> inputs_;
  std::vector<torch::autograd::SavedVariable> tensors_; // of all inputs, in order; under mutex_
  std::vector<bool> differentiable_;                    // of these
  std::vector<size_t> outputs_;                         // indices of those that require grad
};

} // namespace torchmdla
