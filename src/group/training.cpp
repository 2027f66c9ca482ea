#include "training.h"

#include "base/forks.h"
#include "compilation_group.h"
#include "statistics.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <bit>
#include <utility>

namespace torchmdla {

using torch::autograd::variable_list;
using torch::jit::Stack;

namespace {

// Number of kinds of calls that a group compiles training steps for. Each takes seconds to trace.
constexpr size_t max_kinds = 8;

TrainingCompiler& training_compiler() {
  static TrainingCompiler instance;
  return instance;
}

bool append_value(const c10::IValue& value, Signature& key) {
  if (value.isTuple()) { // sizes, in messages of assertions
    const auto& elements = value.toTupleRef().elements();
    key.push_back(static_cast<int64_t>(elements.size()));
    return std::ranges::all_of(elements, [&](const c10::IValue& element) {
      return !element.isTensor() && !element.isTensorList() && append_value(element, key);
    });
  }
  if (value.isDouble()) key.push_back(std::bit_cast<int64_t>(value.toDouble()));
  if (value.isTensor() && !value.toTensor().defined()) return false;
  return append_signature(value, key);
}

// Append the inputs' signature, floats and flags. Return false if programs cannot have such inputs.
bool append_key(c10::ArrayRef<c10::IValue> inputs, Signature& key) {
  for (const auto& input : inputs)
    if (!append_value(input, key)) return false;
  append_modes(key);
  for (const bool flag : requires_grad(inputs))
    key.push_back(flag);
  return true;
}

variable_list tensors_of(c10::ArrayRef<c10::IValue> values) {
  variable_list tensors;
  for (const auto& value : values) {
    if (value.isTensor()) tensors.push_back(value.toTensor());
    if (value.isTensorList())
      for (const auto& element : value.toListRef())
        tensors.push_back(element.toTensor());
  }
  return tensors;
}

OptionalStrides strides_of(const c10::IValue& value) {
  return value.isTensor() ? std::optional(value.toTensor().strides().vec()) : std::nullopt;
}

std::vector<uint32_t> versions_of(const variable_list& tensors) {
  std::vector<uint32_t> versions;
  for (const auto& tensor : tensors)
    versions.push_back(tensor._version());
  return versions;
}

at::Tensor state_of_generator() {
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> guard(generator.mutex());
  return generator.get_state();
}

// Write a new value to an input. Norms update their statistics without a new version, so that
// autograd may have saved them.
void write(const at::Tensor& input, const at::Tensor& value, bool is_versioned) {
  const c10::AutoGradMode no_grad(false);
  if (is_versioned) {
    input.copy_(value);
  } else {
    const at::AutoDispatchBelowADInplaceOrView no_version;
    input.copy_(value);
  }
}

} // namespace

void set_training_compiler(TrainingCompiler compiler) {
  training_compiler() = std::move(compiler);
}

TrainingSteps::TrainingSteps(std::shared_ptr<Subgraph> subgraph, std::string device,
                             std::vector<int64_t> parameters, BackwardPredictor predictor)
    : subgraph_(std::move(subgraph)), device_(std::move(device)),
      parameters_(std::move(parameters)), predictor_(std::move(predictor)) {}

TrainingSteps::Outcome TrainingSteps::run(Stack& stack, size_t num_inputs) {
  const auto inputs = torch::jit::last(stack, num_inputs);
  if (!training_compiler() || !settings().enabled || subgraph_->is_written_around() ||
      at::autocast::is_autocast_enabled(at::kCPU) || !may_read(inputs) || !may_save(inputs))
    return Outcome::none;
  Signature key;
  const auto kind = append_key(inputs, key) ? find_kind(key, requires_grad(inputs)) : nullptr;
  if (!kind) return Outcome::none;
  const auto used = kind->used->flags();
  if (!used) {
    observe(*kind, stack, num_inputs);
    return Outcome::observed;
  }
  const auto program = find_program(*kind, *used, inputs);
  if (!program) return Outcome::none;
  run(program, *kind, *used, stack, num_inputs);
  return Outcome::compiled;
}

// Return the kind of a call, or null if there are too many kinds, or backwards of this kind differ.
std::shared_ptr<TrainingSteps::Kind> TrainingSteps::find_kind(const Signature& key,
                                                              const GradientFlags& inputs) {
  const ForkSafeLock guard(mutex_);
  const auto match =
      std::ranges::find_if(kinds_, [&](const auto& kind) { return kind->key == key; });
  if (match != kinds_.end()) return (*match)->used->is_stable() ? *match : nullptr;
  if (kinds_.size() == max_kinds) return nullptr;
  const bool has_new_flags =
      std::ranges::none_of(kinds_, [&](const auto& kind) { return kind->inputs == inputs; });
  return kinds_.emplace_back(std::make_shared<Kind>(key, inputs, has_new_flags));
}

// Run a call as PyTorch runs it, and note what compilation needs to know. If sizes vary, each of
// them may come only once. PyTorch's differentiable graphs then have groups for any sizes.
void TrainingSteps::observe(Kind& kind, Stack& stack, size_t num_inputs) {
  RECORD_USER_SCOPE("mdla::record");
  const auto below = stack.size() - num_inputs;
  const auto tensors = tensors_of(torch::jit::last(stack, num_inputs));
  const auto before = versions_of(tensors);
  if (kind.has_new_flags || !subgraph_->run_differentiable(stack)) subgraph_->run(stack);
  const auto results = torch::jit::last(stack, stack.size() - below);
  predictor_.add_backward_hooks(results, kind.used);
  const auto after = versions_of(tensors);
  const ForkSafeLock lock(mutex_);
  if (std::exchange(kind.is_observed, true)) return;
  kind.outputs = requires_grad(results);
  std::ranges::transform(results, std::back_inserter(kind.strides), strides_of);
  std::ranges::transform(before, after, std::back_inserter(kind.versioned), std::not_equal_to<>());
}

// Return the program for backwards from the `used` outputs. Return null if it does not exist, or if
// another thread compiles it.
std::shared_ptr<const TrainingProgram>
TrainingSteps::find_program(Kind& kind, const GradientFlags& used,
                            c10::ArrayRef<c10::IValue> inputs) {
  {
    const ForkSafeLock guard(mutex_);
    for (const auto& [of, program] : kind.programs)
      if (of == used) return program;
    if (std::exchange(kind.is_being_compiled, true)) return nullptr;
  }
  std::shared_ptr<const TrainingProgram> result;
  const auto finish = c10::make_scope_exit([&] {
    const ForkSafeLock guard(mutex_);
    kind.is_being_compiled = false;
  });
  result = compile(kind, used, inputs);
  const ForkSafeLock guard(mutex_);
  kind.programs.emplace_back(used, result);
  return result;
}

std::shared_ptr<const TrainingProgram> TrainingSteps::compile(const Kind& kind,
                                                              const GradientFlags& used,
                                                              c10::ArrayRef<c10::IValue> inputs) {
  RECORD_USER_SCOPE("mdla::compile");
  try {
    return training_compiler()({*subgraph_, inputs, parameters_, device_, used, kind.strides});
  } catch (const CompileFailure& failure) {
    statistics().not_trained.count(failure.what());
    return nullptr;
  }
}

void TrainingSteps::run(const std::shared_ptr<const TrainingProgram>& program, const Kind& kind,
                        const GradientFlags& used, Stack& stack, size_t num_inputs) const {
  RECORD_USER_SCOPE("mdla::train");
  const auto inputs = torch::jit::last(stack, num_inputs);
  const auto node = c10::make_intrusive<GroupBackward>(subgraph_, inputs, predictor_);
  const auto tensors = tensors_of(inputs);
  const auto random_state = program->is_random ? state_of_generator() : at::Tensor();
  variable_list detached;
  for (const auto& tensor : tensors)
    detached.push_back(tensor.detach());
  const auto results = program->forward(std::move(detached));
  auto result = results.begin();
  for (const auto index : program->written)
    write(tensors[index], *result++, kind.versioned[index]);
  torch::jit::drop(stack, num_inputs);
  const auto below = stack.size();
  for (const auto& constant : program->outputs)
    stack.push_back(constant ? *constant : c10::IValue(*result++));
  node->set_history(std::span(stack).subspan(below), kind.outputs);
  node->use_program(program, {kind.used, used, random_state}, tensors, results);
}

} // namespace torchmdla
