#include "compiler.h"

#include "device_table.h"
#include "fusion_pass.h"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/jit/passes/shape_analysis.h>
#include <torch/csrc/jit/passes/utils/subgraph_utils.h>

#include <algorithm>

namespace torchmdla {

using torch::jit::Node;
using torch::jit::Stack;
namespace attr = c10::attr;

namespace {

constexpr size_t longest_name = 60;

CompileFunction& compile_function() {
  static CompileFunction function;
  return function;
}

Background& background() {
  static Background instance;
  return instance;
}

// Modes change what an op does (autocast, vmap, FakeTensorMode, …): compiled code would not see
// them.
bool dispatch_mode_active() {
  const auto local = c10::impl::tls_local_dispatch_key_set();
  return !(local.included_ - c10::default_included_set).empty();
}

// A tensor whose memory compiled code may read directly: no subclass, no lazy conjugate or negative
// bit, no other layout or device.
bool is_plain_tensor(const at::Tensor& tensor) {
  static constexpr c10::DispatchKeySet plain({c10::DispatchKey::CPU, c10::DispatchKey::AutogradCPU,
                                              c10::DispatchKey::ADInplaceOrView,
                                              c10::DispatchKey::AutocastCPU});
  return (tensor.key_set() | plain) == plain && tensor.has_storage();
}

bool has_tangent(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->autograd_meta() && tensor._fw_grad(/*level=*/0).defined();
}

// Why compiled code may not take this input; nullopt where it may.
std::optional<Fallback> reason_not_to_read(const c10::IValue& input) {
  if (input.isTensor()) {
    const auto& tensor = input.toTensor();
    if (!tensor.defined()) return std::nullopt;
    if (!is_plain_tensor(tensor)) return Fallback::input_kind;
    const bool differentiable =
        c10::GradMode::is_enabled() && (tensor.requires_grad() || has_tangent(tensor));
    return differentiable ? std::optional(Fallback::requires_grad) : std::nullopt;
  }
  if (input.isTensorList())
    for (const auto& element : input.toListRef())
      if (const auto reason = reason_not_to_read(element)) return reason;
  return std::nullopt;
}

// Set while a group's own executor runs: a group inside of it that needs gradients after all must
// not start another one.
thread_local bool in_differentiable_run = false;

} // namespace

Settings& settings() {
  static Settings instance;
  return instance;
}

void set_compile_function(CompileFunction function) {
  compile_function() = std::move(function);
}

void set_background(Background function) {
  background() = std::move(function);
}

CompilationGroup::CompilationGroup(const Node* node)
    : graph_(node->g(attr::Subgraph)), device_(node->s(device_attribute())),
      name_(torch::jit::SubgraphUtils::generateNameForGraph(graph_, longest_name, "mdla")),
      parameters_(node->is(parameters_attribute())), num_inputs_(node->inputs().size()) {
  const auto table = device_table(device_);
  TORCH_CHECK(table, "torchmdla: a group is for device \"", device_,
              "\", which is not loaded here; "
              "call torchmdla.enable(device=\"",
              device_, "\") first");
  for (const auto* inner : graph_->nodes())
    if (const auto* rule = table->rule(inner))
      for (const auto& [argument, wanted] : rule->where) {
        const auto* value = inner->input(*inner->schema().argumentIndexWithName(argument));
        if (value->node()->kind() != c10::prim::Constant)
          conditions_.push_back({value->debugName(), wanted});
      }
}

void CompilationGroup::run(Stack& stack) {
  RECORD_FUNCTION(name_, c10::ArrayRef<const c10::IValue>());
  if (!settings().enabled.load(std::memory_order_relaxed))
    return fall_back(stack, Fallback::switched_off);
  Signature signature;
  if (const auto reason = reason_to_fall_back(torch::jit::last(stack, num_inputs_), signature)) {
    if (reason == Fallback::requires_grad && !in_differentiable_run)
      return run_differentiable(stack);
    return fall_back(stack, *reason);
  }
  if (const auto* specialisation = find(signature)) return run_specialised(*specialisation, stack);
  if (const auto reason = claim(signature)) return fall_back(stack, *reason);
  specialise(signature, stack);
}

std::optional<Fallback> CompilationGroup::reason_to_fall_back(c10::ArrayRef<c10::IValue> inputs,
                                                              Signature& signature) const {
  if (dispatch_mode_active()) return Fallback::dispatch_mode;
  for (const auto& input : inputs) {
    if (const auto reason = reason_not_to_read(input)) return reason;
    if (!append_signature(input, signature)) return Fallback::input_kind;
  }
  return std::nullopt;
}

const CompilationGroup::Specialisation* CompilationGroup::find(const Signature& signature) const {
  const auto* found = newest_.load(std::memory_order_acquire);
  while (found && found->signature != signature)
    found = found->next;
  return found;
}

void CompilationGroup::run_specialised(const Specialisation& specialisation, Stack& stack) {
  switch (specialisation.outcome) {
  case Outcome::compiled:
    if (!specialisation.executable->run(stack, num_inputs_)) fall_back(stack, Fallback::status);
    return;
  case Outcome::split:
    return run_split(stack);
  case Outcome::failed:
    if (settings().strict) specialisation.raise();
    statistics().count(specialisation.failure);
    return fall_back(stack);
  }
}

// The first call with new inputs: its results come from eager kernels, whose record is what the
// compiler needs, and whose errors are the ones the user should see.
void CompilationGroup::specialise(const Signature& signature, Stack& stack) {
  auto unclaim = c10::make_scope_exit([&] { release(signature); });
  auto record = run_and_record(*graph_, stack);
  if (settings().background) {
    background()([self = shared_from_this(), signature, record = std::move(record)] {
      const auto done = c10::make_scope_exit([&] { self->release(signature); });
      self->publish(self->compile(signature, record));
    });
    unclaim.release(); // the task's now
    return;
  }
  const auto& made = publish(compile(signature, record));
  if (made.outcome == Outcome::failed && settings().strict) made.raise();
}

void CompilationGroup::release(const Signature& signature) {
  std::lock_guard<std::mutex> guard(mutex_);
  being_compiled_.erase({signature.begin(), signature.end()});
}

// Whether this thread is the one to compile: nullopt, or why not.
std::optional<Fallback> CompilationGroup::claim(const Signature& signature) {
  std::lock_guard<std::mutex> guard(mutex_);
  const auto limit = static_cast<size_t>(settings().max_specialisations.load());
  if (specialisations_.size() + being_compiled_.size() >= limit)
    return Fallback::too_many_specialisations;
  if (find(signature) || !being_compiled_.emplace(signature.begin(), signature.end()).second)
    return Fallback::being_compiled;
  return std::nullopt;
}

bool CompilationGroup::conditions_hold(const Record& record) const {
  return std::all_of(conditions_.begin(), conditions_.end(), [&](const Condition& condition) {
    const auto found = std::find_if(record.begin(), record.end(), [&](const RecordedValue& seen) {
      return seen.name == condition.value;
    });
    const auto* value = found == record.end() ? nullptr : std::get_if<c10::IValue>(&found->seen);
    return value && value->equals(condition.wanted).toBool();
  });
}

std::unique_ptr<CompilationGroup::Specialisation>
CompilationGroup::compile(const Signature& signature, const Record& record) const {
  auto made = std::make_unique<Specialisation>();
  made->signature = signature;
  if (!conditions_hold(record)) {
    made->outcome = Outcome::split;
    return made;
  }
  try {
    made->executable = compile_function()({graph_, record, parameters_, device_});
    made->outcome = Outcome::compiled;
    ++statistics().specialisations;
  } catch (const CompileFailure& failure) {
    made->failure = failure.what();
    made->raise = failure.raise;
  }
  return made;
}

const CompilationGroup::Specialisation&
CompilationGroup::publish(std::unique_ptr<Specialisation> specialisation) {
  std::lock_guard<std::mutex> guard(mutex_);
  specialisation->next = newest_.load(std::memory_order_relaxed);
  newest_.store(specialisation.get(), std::memory_order_release);
  specialisations_.push_back(std::move(specialisation));
  return *specialisations_.back();
}

// A group that took an op on a condition that this call violates (dropout, in training after all):
// the subgraph runs with groups of its own around such ops.
void CompilationGroup::run_split(Stack& stack) {
  std::call_once(split_once_, [&] {
    auto graph = graph_->copy();
    if (const auto table = device_table(device_))
      fuse_groups(graph, *table, OpenConditions::assume_violated);
    split_.emplace(graph, name_);
  });
  torch::jit::InterpreterState(*split_).run(stack);
}

// A group formed from a run without gradients (tracing checks its result in one) and called with
// them: an executor of its own profiles the subgraph anew, and forms groups inside the
// differentiable graphs that it makes of it, forward and backward.
void CompilationGroup::run_differentiable(Stack& stack) {
  std::call_once(differentiable_once_, [&] {
    auto graph = graph_->copy();
    torch::jit::EraseShapeInformation(graph);
    differentiable_.emplace(graph, name_);
  });
  in_differentiable_run = true;
  const auto leave = c10::make_scope_exit([] { in_differentiable_run = false; });
  differentiable_->run(stack);
}

void CompilationGroup::fall_back(Stack& stack, Fallback reason) {
  statistics().count(reason);
  fall_back(stack);
}

void CompilationGroup::fall_back(Stack& stack) {
  std::call_once(interpreted_once_, [&] { interpreted_.emplace(graph_, name_); });
  torch::jit::InterpreterState(*interpreted_).run(stack);
}

} // namespace torchmdla
