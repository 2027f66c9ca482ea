#include "group_autograd.h"

#include "base/forks.h"

#include <ATen/SavedTensorHooks.h>
#include <ATen/core/List.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function_hook.h>

#include <algorithm>
#include <utility>

namespace torchmdla {

using torch::autograd::variable_list;
using torch::jit::Stack;

namespace {

// Maximum number of input flags per specialisation. A program trains with few sets of frozen
// weights.
constexpr size_t max_flags = 32;

// Number of calls without backward that one backward pays for. It is more than one, so that a
// training program is recognised even if it also runs other calls. The sum is bounded, so that the
// end of training is recognised.
constexpr int64_t credit_of_backward = 2;
constexpr int64_t max_credit = 1000;

// Return whether `check` holds for any tensor among the values.
template <class Check> bool any_tensor(c10::ArrayRef<c10::IValue> values, Check check) {
  return std::any_of(values.begin(), values.end(), [&](const c10::IValue& value) {
    if (value.isTensor()) return value.toTensor().defined() && check(value.toTensor());
    if (!value.isTensorList()) return false;
    const auto elements = value.toListRef();
    return std::any_of(elements.begin(), elements.end(),
                       [&](const c10::IValue& element) { return check(element.toTensor()); });
  });
}

bool requires_grad(const at::Tensor& tensor) {
  return tensor.defined() && tensor.requires_grad();
}

class CountBackward : public torch::autograd::FunctionPreHook {
public:
  explicit CountBackward(BackwardPredictor predictor) : predictor_(std::move(predictor)) {}

  variable_list operator()(const variable_list& gradients) override {
    predictor_.count_backward();
    return gradients;
  }

  // Do nothing: compiled autograd runs without this hook.
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override {}

private:
  const BackwardPredictor predictor_;
};

} // namespace

bool needs_gradients(c10::ArrayRef<c10::IValue> inputs) {
  return c10::GradMode::is_enabled() &&
         any_tensor(inputs, [](const at::Tensor& tensor) { return tensor.requires_grad(); });
}

bool may_save(c10::ArrayRef<c10::IValue> inputs) {
  return !at::SavedTensorDefaultHooks::get_hooks() &&
         !any_tensor(inputs, [](const at::Tensor& tensor) { return tensor.is_inference(); });
}

GradientFlags requires_grad(c10::ArrayRef<c10::IValue> values) {
  GradientFlags flags;
  for (const auto& value : values) {
    if (value.isTensorList())
      for (const auto& element : value.toListRef())
        flags.push_back(requires_grad(element.toTensor()));
    else
      flags.push_back(value.isTensor() && requires_grad(value.toTensor()));
  }
  return flags;
}

std::shared_ptr<const GradientFlags> OutputGradients::find(const GradientFlags& inputs) const {
  auto observation = newest_.load(std::memory_order_acquire);
  while (observation && observation->inputs != inputs)
    observation = observation->next;
  return observation ? std::shared_ptr<const GradientFlags>(observation, &observation->outputs)
                     : nullptr;
}

void OutputGradients::add(const GradientFlags& inputs, const GradientFlags& outputs) {
  auto newest = newest_.load(std::memory_order_acquire);
  const auto addition = std::make_shared<Observation>(Observation{inputs, outputs, nullptr});
  do {
    size_t count = 0;
    for (const auto* observation = newest.get(); observation; observation = observation->next.get())
      if (observation->inputs == inputs || ++count == max_flags) return;
    addition->next = newest;
  } while (!newest_.compare_exchange_weak(newest, addition, std::memory_order_acq_rel));
}

bool BackwardPredictor::count_call() const {
  auto credit = credit_->load(std::memory_order_relaxed);
  while (credit > 0 &&
         !credit_->compare_exchange_weak(credit, credit - 1, std::memory_order_relaxed)) {
  }
  return credit > 0;
}

void BackwardPredictor::count_backward() const {
  auto credit = credit_->load(std::memory_order_relaxed);
  while (credit < max_credit && !credit_->compare_exchange_weak(credit, credit + credit_of_backward,
                                                                std::memory_order_relaxed)) {
  }
}

void BackwardPredictor::add_backward_hooks(c10::ArrayRef<c10::IValue> results) const {
  for (const auto& result : results)
    if (result.isTensor() && requires_grad(result.toTensor()))
      if (const auto& node = result.toTensor().grad_fn())
        node->add_pre_hook(std::make_unique<CountBackward>(*this));
}

GroupBackward::GroupBackward(std::shared_ptr<Subgraph> subgraph, c10::ArrayRef<c10::IValue> inputs,
                             BackwardPredictor predictor)
    : subgraph_(std::move(subgraph)), predictor_(std::move(predictor)) {
  inputs_.reserve(inputs.size());
  tensors_.reserve(inputs.size());
  for (const auto& input : inputs) {
    if (input.isTensor()) {
      save(input.toTensor());
      inputs_.push_back({Input::Kind::tensor, {}});
    } else if (input.isTensorList()) {
      const auto elements = input.toListRef();
      for (const auto& element : elements)
        save(element.toTensor());
      inputs_.push_back({Input::Kind::tensors, {}, elements.size()});
    } else {
      inputs_.push_back({Input::Kind::other, input});
    }
  }
}

void GroupBackward::save(const at::Tensor& tensor) {
  tensors_.emplace_back(tensor, /*is_output=*/false);
  differentiable_.push_back(requires_grad(tensor));
  if (differentiable_.back()) add_next_edge(torch::autograd::impl::gradient_edge(tensor));
}

// Make the marked outputs results of this node. Outputs may be the same tensor, and one edge is
// enough then. If eager PyTorch returns a tensor and its detached alias, so does the group.
void GroupBackward::set_history(std::span<c10::IValue> outputs, const GradientFlags& flags) {
  for (size_t i = 0; i < outputs.size(); ++i)
    if (flags[i] && !requires_grad(outputs[i].toTensor())) {
      auto output = outputs[i].toTensor();
      torch::autograd::create_gradient_edge(output, getptr());
      outputs_.push_back(i);
    }
  for (size_t i = 0; i < outputs.size(); ++i)
    if (!flags[i] && outputs[i].isTensor() && requires_grad(outputs[i].toTensor()))
      outputs[i] = outputs[i].toTensor().detach();
}

void GroupBackward::release_variables() {
  const ForkSafeLock guard(mutex_);
  for (auto& tensor : tensors_)
    tensor.reset_data();
}

// Return the saved inputs for the second run. Without `create_graph` they are new leaves, so that
// autograd records nothing else. With it they are aliases that lead on to the inputs. Aliases
// exclude paths between two inputs outside of the group.
GroupBackward::Recomputation GroupBackward::unpack(bool create_graph) {
  variable_list tensors;
  {
    const ForkSafeLock guard(mutex_);
    for (const auto& tensor : tensors_)
      tensors.push_back(tensor.unpack());
  }
  Recomputation recomputation;
  size_t edge = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    auto& tensor = tensors[i];
    if (!differentiable_[i]) continue;
    if (create_graph)
      tensor = tensor.view_as(tensor);
    else
      tensor = tensor.detach().requires_grad_(task_should_compute_output(edge));
    recomputation.differentiable.push_back(tensor);
    ++edge;
  }
  auto next = tensors.begin();
  for (const auto& input : inputs_) {
    switch (input.kind) {
    case Input::Kind::tensor:
      recomputation.stack.emplace_back(*next++);
      break;
    case Input::Kind::tensors:
      recomputation.stack.emplace_back(
          c10::List<at::Tensor>(variable_list(next, next + input.elements)));
      next += input.elements;
      break;
    case Input::Kind::other:
      recomputation.stack.push_back(input.other);
      break;
    }
  }
  return recomputation;
}

variable_list GroupBackward::apply(variable_list&& gradients) {
  predictor_.count_backward();
  const bool create_graph = c10::GradMode::is_enabled();
  // The group ran without autocast, so backward does too.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const c10::AutoGradMode grad(true);
  auto [stack, differentiable] = unpack(create_graph);
  subgraph_->run(stack);

  variable_list outputs, inputs, output_gradients;
  std::vector<size_t> edges;
  for (size_t i = 0; i < gradients.size(); ++i)
    if (gradients[i].defined()) {
      outputs.push_back(stack[outputs_[i]].toTensor());
      output_gradients.push_back(std::move(gradients[i]));
    }
  for (size_t i = 0; i < differentiable.size(); ++i)
    if (task_should_compute_output(i)) {
      inputs.push_back(differentiable[i]);
      edges.push_back(i);
    }
  variable_list result(num_outputs());
  if (outputs.empty() || inputs.empty()) return result;
  auto input_gradients =
      torch::autograd::grad(outputs, inputs, output_gradients, create_graph, create_graph,
                            /*allow_unused=*/true);
  for (size_t i = 0; i < edges.size(); ++i)
    result[edges[i]] = std::move(input_gradients[i]);
  return result;
}

} // namespace torchmdla
