#include "group_autograd.h"

#include "base/forks.h"
#include "compilation_group.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/core/List.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>

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

// Number of times that a kind of calls may be expected to use other outputs than it does.
constexpr int max_corrections = 4;

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

// Hook of the node that computed an output.
class CountBackward : public torch::autograd::FunctionPreHook {
public:
  CountBackward(BackwardPredictor predictor, std::shared_ptr<UsedOutputs> used, size_t output,
                size_t result)
      : predictor_(std::move(predictor)), used_(std::move(used)), output_(output), result_(result) {
  }

  variable_list operator()(const variable_list& gradients) override {
    predictor_.count_backward();
    if (used_ && gradients[result_].defined()) used_->add(output_);
    return gradients;
  }

  // Do nothing: compiled autograd runs without this hook.
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override {}

private:
  const BackwardPredictor predictor_;
  const std::shared_ptr<UsedOutputs> used_; // may be null
  const size_t output_;                     // of the group
  const size_t result_;                     // of the node
};

// Return `gradient` in a layout that a program requires.
at::Tensor with_layout(const at::Tensor& gradient, const TrainingProgram::Layout& layout) {
  if (gradient.strides() == c10::IntArrayRef(layout.strides)) return gradient;
  return at::empty_strided(layout.sizes, layout.strides, gradient.options()).copy_(gradient);
}

// Scope in which random numbers are those after `state`, if it is defined.
class RandomReplay {
public:
  explicit RandomReplay(const at::Tensor& state) {
    if (state.defined()) swap_state(state);
  }
  ~RandomReplay() {
    if (previous_.defined()) swap_state(at::Tensor(previous_));
  }
  RandomReplay(const RandomReplay&) = delete;
  RandomReplay& operator=(const RandomReplay&) = delete;

private:
  void swap_state(const at::Tensor& state) {
    auto generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard<std::mutex> guard(generator.mutex());
    previous_ = generator.get_state();
    generator.set_state(state);
  }

  at::Tensor previous_;
};

} // namespace

std::optional<GradientFlags> UsedOutputs::flags() const {
  const ForkSafeLock guard(mutex_);
  return flags_;
}

void UsedOutputs::add(size_t output) {
  const ForkSafeLock guard(mutex_);
  if (!flags_) flags_.emplace();
  if (flags_->size() <= output) flags_->resize(output + 1);
  (*flags_)[output] = true;
}

void UsedOutputs::correct(const GradientFlags& used) {
  const ForkSafeLock guard(mutex_);
  flags_ = used;
  ++corrections_;
}

bool UsedOutputs::is_stable() const {
  const ForkSafeLock guard(mutex_);
  return corrections_ < max_corrections;
}

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

void BackwardPredictor::add_backward_hooks(c10::ArrayRef<c10::IValue> results,
                                           const std::shared_ptr<UsedOutputs>& used) const {
  for (size_t i = 0; i < results.size(); ++i) {
    if (!results[i].isTensor() || !requires_grad(results[i].toTensor())) continue;
    const auto& tensor = results[i].toTensor();
    if (const auto& node = tensor.grad_fn())
      node->add_pre_hook(std::make_unique<CountBackward>(*this, used, i, tensor.output_nr()));
  }
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

void GroupBackward::use_program(std::shared_ptr<const TrainingProgram> program,
                                Circumstances circumstances, const variable_list& inputs,
                                const variable_list& results) {
  Compiled compiled{std::move(program), std::move(circumstances), {}, {}};
  compiled.written.resize(tensors_.size());
  for (const auto index : compiled.program->written) {
    // The version of a statistic changes in each call, and its value is not needed.
    compiled.written[index] = inputs[index];
    tensors_[index].reset_data();
  }
  for (const auto& [is_input, index] : compiled.program->saved) {
    if (is_input) continue;
    const bool is_output = results[index].grad_fn().get() == this;
    compiled.results.emplace_back(results[index], is_output);
  }
  compiled_ = std::move(compiled);
}

void GroupBackward::release_variables() {
  const ForkSafeLock guard(mutex_);
  for (auto& tensor : tensors_)
    tensor.reset_data();
  if (!compiled_) return;
  compiled_->written.clear();
  for (auto& result : compiled_->results)
    result.reset_data();
}

// Return the inputs that were saved. Those that a training program writes to are copies.
variable_list GroupBackward::unpack_inputs() {
  const ForkSafeLock guard(mutex_);
  variable_list tensors;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const bool is_written =
        compiled_ && !compiled_->written.empty() && compiled_->written[i].defined();
    tensors.push_back(is_written ? compiled_->written[i].clone() : tensors_[i].unpack());
  }
  return tensors;
}

// Return the saved inputs for the second run. Without `create_graph` they are new leaves, so that
// autograd records nothing else. With it they are aliases that lead on to the inputs. Aliases
// exclude paths between two inputs outside of the group.
GroupBackward::Recomputation GroupBackward::unpack(bool create_graph) {
  auto tensors = unpack_inputs();
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
  if (compiled_) {
    const auto used = used_outputs(gradients);
    const bool is_expected = used == compiled_->circumstances.expected;
    const bool are_plain = std::ranges::all_of(gradients, [](const at::Tensor& gradient) {
      return !gradient.defined() || may_read(c10::IValue(gradient));
    });
    if (!create_graph && is_expected && are_plain) return run_program(std::move(gradients));
    if (!is_expected) compiled_->circumstances.used->correct(used);
  }
  return recompute(std::move(gradients), create_graph);
}

// Return which outputs of the group have a gradient, up to the last one that has.
GradientFlags GroupBackward::used_outputs(const variable_list& gradients) const {
  GradientFlags used;
  for (size_t i = 0; i < gradients.size(); ++i)
    if (gradients[i].defined()) {
      used.resize(outputs_[i]);
      used.push_back(true);
    }
  return used;
}

variable_list GroupBackward::run_program(variable_list gradients) {
  auto& [program, circumstances, results, written] = *compiled_;
  variable_list values;
  {
    const ForkSafeLock guard(mutex_);
    auto result = results.begin();
    for (const auto& [is_input, index] : program->saved)
      values.push_back(is_input ? tensors_[index].unpack() : (result++)->unpack(getptr()));
  }
  // The program frees values as it goes.
  if (!torch::autograd::get_current_graph_task_keep_graph()) release_variables();
  auto layout = program->gradients.begin();
  for (auto& gradient : gradients)
    if (gradient.defined()) values.push_back(with_layout(gradient, *layout++));
  gradients.clear();
  auto of_inputs = program->backward(std::move(values));
  variable_list result(num_outputs());
  size_t edge = 0;
  for (size_t i = 0; i < differentiable_.size(); ++i)
    if (differentiable_[i] && task_should_compute_output(edge++))
      result[edge - 1] = std::move(of_inputs[i]);
  return result;
}

variable_list GroupBackward::recompute(variable_list gradients, bool create_graph) {
  const c10::AutoGradMode grad(true);
  auto [stack, differentiable] = unpack(create_graph);
  {
    const RandomReplay replay(compiled_ ? compiled_->circumstances.random_state : at::Tensor());
    subgraph_->run(stack);
  }

  variable_list outputs, inputs, output_gradients;
  std::vector<size_t> edges;
  for (size_t i = 0; i < gradients.size(); ++i)
    if (gradients[i].defined())
      // An output that was computed in no_grad passes no gradient on.
      if (auto output = stack[outputs_[i]].toTensor(); output.requires_grad()) {
        outputs.push_back(std::move(output));
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
