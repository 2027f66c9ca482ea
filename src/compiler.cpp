#include "compiler.h"

#include "fusion_pass.h"
#include "script_subgraph.h"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>

namespace torchmdla {

using torch::jit::Node;
using torch::jit::Stack;
namespace attr = c10::attr;

namespace {

Compiler& compiler() {
  static Compiler instance;
  return instance;
}

Background& run_beside() {
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

// Samples are no calls of the user's.
class NoWarnings : public c10::WarningHandler {
public:
  void process(const c10::Warning&) override {}
};

// What a thread that compiles beside the program takes over from the caller's.
struct Modes {
  bool grad = c10::GradMode::is_enabled();
  bool inference = c10::InferenceMode::is_enabled();
};

std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

GroupDescription describe(const Node* node, InputPaths inputs) {
  const auto device = node->s(device_attribute());
  auto subgraph = std::make_shared<ScriptSubgraph>(node->g(attr::Subgraph), device);
  auto name = subgraph->name();
  return {std::move(subgraph), device, std::move(name), node->is(parameters_attribute()),
          std::move(inputs),   {}};
}

} // namespace

Settings& settings() {
  static Settings instance;
  return instance;
}

void set_compiler(Compiler functions) {
  compiler() = std::move(functions);
}

void set_background(Background function) {
  run_beside() = std::move(function);
}

CompilationGroup::CompilationGroup(GroupDescription description) : group_(std::move(description)) {}

CompilationGroup::CompilationGroup(const Node* node) : CompilationGroup(node, InputPaths(node)) {}

CompilationGroup::CompilationGroup(const Node* node, InputPaths inputs)
    : CompilationGroup(describe(node, std::move(inputs))) {}

void CompilationGroup::run(Stack& stack) {
  RECORD_FUNCTION(group_.name, c10::ArrayRef<const c10::IValue>());
  // Its parameters are those of the other specialisations.
  if (const auto* newest = newest_.load(std::memory_order_acquire); newest && newest->executable)
    newest->executable->prefetch();
  group_.inputs.expand(stack);
  if (!settings().enabled.load(std::memory_order_relaxed))
    return fall_back(stack, Fallback::switched_off);
  Signature signature;
  if (const auto reason =
          reason_to_fall_back(torch::jit::last(stack, group_.inputs.num_inputs()), signature)) {
    if (reason == Fallback::requires_grad && group_.subgraph->run_differentiable(stack)) return;
    return fall_back(stack, *reason);
  }
  if (const auto* specialisation = find(signature)) return run_specialised(*specialisation, stack);
  Symbols values;
  if (auto* specialisation = find_dynamic(signature, values))
    return run_dynamic(*specialisation, values, signature, stack);
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

CompilationGroup::DynamicSpecialisation* CompilationGroup::find_dynamic(const Signature& signature,
                                                                        Symbols& values) const {
  if (!settings().dynamic.load(std::memory_order_relaxed)) return nullptr;
  auto* found = newest_dynamic_.load(std::memory_order_acquire);
  while (found && !found->pattern.covers(signature, values))
    found = found->next;
  return found;
}

void CompilationGroup::run_specialised(const Specialisation& specialisation, Stack& stack) {
  switch (specialisation.outcome) {
  case Outcome::compiled:
    return run_compiled(*specialisation.executable, {}, stack);
  case Outcome::split:
    return group_.subgraph->run_split(stack);
  case Outcome::failed:
    if (strict()) specialisation.raise();
    statistics().count(specialisation.failure);
    return fall_back(stack);
  }
}

void CompilationGroup::run_compiled(const Executable& executable, c10::ArrayRef<int64_t> symbols,
                                    Stack& stack) {
  std::optional<DeviceFault> fault;
  try {
    if (executable.run(stack, group_.inputs.num_inputs(), symbols)) return;
  } catch (const DeviceFault& error) {
    fault.emplace(error);
  }
  if (!fault) return fall_back(stack, Fallback::status);
  if (strict() || fault->held || !fault_told_.exchange(true))
    compiler().tell_fault(group_.name, fault->what(), strict());
  statistics().count(fault->what());
  fall_back(stack);
}

// Outside of what is known of a dynamic executable the call's results come from eager kernels,
// whose record tells whether the executable would have done the same.
void CompilationGroup::run_dynamic(DynamicSpecialisation& specialisation, const Symbols& values,
                                   const Signature& signature, Stack& stack) {
  if (specialisation.domain.contains(values)) {
    run_compiled(*specialisation.compiled.executable, values, stack);
    return;
  }
  auto record = group_.subgraph->run_and_record(stack);
  if (specialisation.compiled.agrees(record, values)) return specialisation.domain.add(values);
  Fallback refusal;
  if (auto claimed = claim(signature, refusal))
    compile(std::move(claimed), std::move(record));
  else
    statistics().count(refusal);
}

// The first call with new inputs: its results come from eager kernels, whose record is what the
// compiler needs, and whose errors are the ones the user should see.
void CompilationGroup::specialise(const Signature& signature, Stack& stack) {
  Fallback refusal;
  auto claimed = claim(signature, refusal, torch::jit::last(stack, group_.inputs.num_inputs()));
  if (!claimed) return fall_back(stack, refusal);
  auto record = group_.subgraph->run_and_record(stack);
  compile(std::move(claimed), std::move(record));
}

bool CompilationGroup::Claim::includes(const Signature& other) const {
  Symbols values;
  return other == signature || (pattern && pattern->covers(other, values));
}

// The right to compile for `signature`, and given the call's `inputs` for any sizes if these turn
// out to vary; null if this thread is not the one to do it, with the reason.
std::shared_ptr<CompilationGroup::Claim>
CompilationGroup::claim(const Signature& signature, Fallback& refusal,
                        std::optional<c10::ArrayRef<c10::IValue>> inputs) {
  std::lock_guard<std::mutex> guard(mutex_);
  Symbols values;
  auto reason = this->refusal(signature);
  if (inputs && find_dynamic(signature, values)) reason = Fallback::being_compiled;
  if (reason) {
    refusal = *reason;
    return nullptr;
  }
  auto claimed = std::make_shared<Claim>(shared_from_this(), signature);
  if (inputs && settings().dynamic) {
    claimed->pattern = plan(signature, *inputs);
    claimed->inputs = inputs->vec();
  }
  claims_.push_back(claimed.get());
  return claimed;
}

std::optional<Fallback> CompilationGroup::refusal(const Signature& signature) const {
  const auto limit = static_cast<size_t>(max_specialisations());
  if (specialisations_.size() + dynamic_.size() + claims_.size() >= limit)
    return Fallback::too_many_specialisations;
  const bool claimed = std::any_of(claims_.begin(), claims_.end(),
                                   [&](const Claim* other) { return other->includes(signature); });
  return claimed || find(signature) ? std::optional(Fallback::being_compiled) : std::nullopt;
}

// Which sizes to compile for any values of, if any.
std::optional<Pattern> CompilationGroup::plan(const Signature& signature,
                                              c10::ArrayRef<c10::IValue> inputs) const {
  std::vector<const Signature*> earlier;
  for (const auto& specialisation : specialisations_)
    if (specialisation->outcome == Outcome::compiled) earlier.push_back(&specialisation->signature);
  for (const auto& specialisation : dynamic_)
    earlier.push_back(&specialisation->pattern.typical);
  if (earlier.size() < 2) return std::nullopt;
  return choose_pattern(signature, may_vary(inputs), earlier, refused_);
}

// Gives the claim a pattern in which nothing has `size`; false if there is none.
bool CompilationGroup::plan_without(int64_t size, Claim& claim) {
  if (claim.inputs.empty()) return false;
  std::lock_guard<std::mutex> guard(mutex_);
  claim.pattern = pattern_without(size, claim.signature, may_vary(claim.inputs), refused_);
  return claim.pattern.has_value();
}

// Of the entries of the inputs' signature.
std::vector<bool> CompilationGroup::may_vary(c10::ArrayRef<c10::IValue> inputs) const {
  std::vector<bool> result;
  for (size_t i = 0; i < inputs.size(); ++i) {
    auto marks = marks_of_numbers(inputs[i]);
    const auto index = static_cast<int64_t>(i);
    if (std::find(group_.parameters.begin(), group_.parameters.end(), index) !=
        group_.parameters.end())
      marks.assign(marks.size(), false);
    result.insert(result.end(), marks.begin(), marks.end());
  }
  return result;
}

void CompilationGroup::release(const Claim& claim) {
  std::lock_guard<std::mutex> guard(mutex_);
  claims_.erase(std::remove(claims_.begin(), claims_.end(), &claim), claims_.end());
}

void CompilationGroup::compile(std::shared_ptr<Claim> claim, Record record) {
  if (background()) {
    run_beside()([claim = std::move(claim), record = std::move(record), modes = Modes()] {
      const c10::InferenceMode inference(modes.inference);
      const c10::AutoGradMode grad(modes.grad);
      claim->group->compile(*claim, record);
    });
    return;
  }
  compile(*claim, record);
  const auto* made = find(claim->signature);
  if (made && made->outcome == Outcome::failed && strict()) made->raise();
}

void CompilationGroup::compile(Claim& claim, const Record& record) {
  if (!group_.subgraph->conditions_hold(record)) {
    auto made = std::make_unique<Specialisation>();
    made->signature = claim.signature;
    made->outcome = Outcome::split;
    publish(std::move(made));
  } else if (!claim.pattern || !compile_dynamic(claim, record)) {
    compile_static(claim, record);
  }
}

// For all sizes that the claim's pattern covers; false if that cannot be.
bool CompilationGroup::compile_dynamic(const Claim& claim, const Record& record) {
  auto made = std::make_unique<DynamicSpecialisation>();
  made->pattern = *claim.pattern;
  const auto refuse = [&](const std::string& reason) {
    statistics().count_not_dynamic(reason);
    std::lock_guard<std::mutex> guard(mutex_);
    refused_.insert(claim.pattern->places);
    return false;
  };
  std::vector<RecordedSample> samples;
  try {
    samples = record_samples(claim);
  } catch (const std::exception& error) {
    return refuse("at other sizes: " + first_line(error));
  }
  const auto values = made->pattern.typical_values();
  try {
    made->compiled = compiler().compile_dynamic(
        {{*group_.subgraph, record, group_.parameters, group_.device}, values, samples});
  } catch (const CompileFailure& failure) {
    return refuse(failure.what());
  }
  made->domain.add(values);
  for (const auto& sample : samples)
    made->domain.add(sample.values);
  ++statistics().specialisations;
  ++statistics().dynamic;
  std::lock_guard<std::mutex> guard(mutex_);
  made->next = newest_dynamic_.load(std::memory_order_relaxed);
  newest_dynamic_.store(made.get(), std::memory_order_release);
  dynamic_.push_back(std::move(made));
  return true;
}

// Runs the subgraph on made-up inputs. Throws what eager ops throw.
std::vector<RecordedSample> CompilationGroup::record_samples(const Claim& claim) const {
  NoWarnings silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  std::vector<RecordedSample> samples;
  for (const auto& values : sample_values(*claim.pattern)) {
    auto stack = sample_inputs(*claim.pattern, values, claim.inputs);
    samples.push_back({values, group_.subgraph->run_and_record(stack)});
  }
  return samples;
}

// For the claim's signature alone, or for all sizes at once where one is too long for that.
void CompilationGroup::compile_static(Claim& claim, const Record& record) {
  auto made = std::make_unique<Specialisation>();
  made->signature = claim.signature;
  std::function<void()> warn;
  try {
    made->executable =
        compiler().compile({*group_.subgraph, record, group_.parameters, group_.device});
    made->outcome = Outcome::compiled;
    ++statistics().specialisations;
  } catch (const CompileFailure& failure) {
    if (failure.too_long && plan_without(*failure.too_long, claim) &&
        compile_dynamic(claim, record))
      return;
    made->failure = failure.what();
    made->raise = failure.raise;
    if (!strict()) warn = failure.warn;
  }
  publish(std::move(made));
  if (warn) warn();
}

void CompilationGroup::publish(std::unique_ptr<Specialisation> specialisation) {
  std::lock_guard<std::mutex> guard(mutex_);
  specialisation->next = newest_.load(std::memory_order_relaxed);
  newest_.store(specialisation.get(), std::memory_order_release);
  specialisations_.push_back(std::move(specialisation));
}

void CompilationGroup::fall_back(Stack& stack, Fallback reason) {
  statistics().count(reason);
  fall_back(stack);
}

void CompilationGroup::fall_back(Stack& stack) {
  group_.subgraph->run(stack);
}

} // namespace torchmdla
