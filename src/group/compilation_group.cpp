#include "compilation_group.h"

#include "fusion/fusion_pass.h"
#include "memory_limit.h"
#include "script_subgraph.h"
#include "support/exception_text.h"
#include "support/quantisation.h"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <iterator>
#include <span>

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

// Return whether a dispatch mode (vmap, FakeTensorMode, …) is active. Modes change the meaning of
// operators, and compiled code would not see them.
bool dispatch_mode_active() {
  const auto local = c10::impl::tls_local_dispatch_key_set();
  return !(local.included_ - c10::default_included_set).empty();
}

constexpr c10::DispatchKeySet
    plain({c10::DispatchKey::CPU, c10::DispatchKey::QuantizedCPU, c10::DispatchKey::AutogradCPU,
           c10::DispatchKey::ADInplaceOrView, c10::DispatchKey::AutocastCPU});

// Return whether compiled code may read the tensor's memory directly. The tensor must be strided,
// on the CPU, and have no subclass and no lazy conjugate or negative bit. A quantised tensor must
// be quantised per tensor.
bool is_plain_tensor(const at::Tensor& tensor) {
  if ((tensor.key_set() | plain) != plain || !tensor.has_storage()) return false;
  return !tensor.is_quantized() || quantisation_of(tensor);
}

// Return 4 if four bits are enough for every value of an int8 tensor, else 0.
int64_t bits_of(const at::Tensor& tensor) {
  constexpr int few = 4, limit = 1 << (few - 1);
  if (!tensor.defined() || tensor.scalar_type() != at::kChar || tensor.numel() == 0 ||
      !is_plain_tensor(tensor) || !tensor.is_non_overlapping_and_dense())
    return 0;
  const std::span values(tensor.const_data_ptr<int8_t>(), tensor.numel());
  const auto [least, most] = std::ranges::minmax(values);
  return least >= -limit && most < limit ? few : 0;
}

// Return whether the tensor has a forward-mode tangent. `_fw_grad` locks a mutex of the tensor, so
// a null pointer rules out most tensors first. A view may have the tangent of its base.
bool has_tangent(const at::Tensor& tensor) {
  const auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  if (!meta || (!meta->fw_grad_ && !meta->is_view_)) return false;
  return tensor._fw_grad(/*level=*/0).defined();
}

// Return the type of an input that groups do not support.
std::string described(const c10::IValue& input) {
  if (input.isTensor())
    return input.toTensor().toString() + " with " + toString(input.toTensor().key_set() - plain);
  if (input.isTensorList())
    for (const auto& element : input.toListRef())
      if (!is_plain_tensor(element.toTensor())) return "a list with a " + described(element);
  return input.type()->repr_str();
}

// Return why compiled code may not read this input, or nullopt if it may.
std::optional<Fallback> reason_not_to_read(const c10::IValue& input) {
  if (input.isTensor()) {
    const auto& tensor = input.toTensor();
    if (!tensor.defined()) return std::nullopt;
    if (!is_plain_tensor(tensor)) return Fallback::input_kind;
    return has_tangent(tensor) ? std::optional(Fallback::tangent) : std::nullopt;
  }
  if (input.isTensorList())
    for (const auto& element : input.toListRef())
      if (const auto reason = reason_not_to_read(element)) return reason;
  return std::nullopt;
}

// Number of refusals after which places are never symbols again. One refusal may depend on the
// sizes of its call.
constexpr int most_refusals = 3;

// Number of dynamic specialisations of one pattern after which the pattern is refused. Their
// conditions then divide the sizes into too many parts.
constexpr int most_parts = 8;

GroupDescription describe(const Node* node, InputPaths inputs) {
  const auto device = node->s(device_attribute());
  auto subgraph = std::make_shared<ScriptSubgraph>(node->g(attr::Subgraph), device,
                                                   is_written_around(node), varying_inputs(node));
  auto name = subgraph->name();
  std::vector<VaryingNumber> varying;
  for (const auto index : varying_inputs(node))
    varying.push_back({static_cast<size_t>(index), /*number=*/0});
  return {std::move(subgraph),
          device,
          std::move(name),
          node->is(parameters_attribute()),
          std::move(inputs),
          {},
          !node->hasAttribute(first_run_attribute()),
          std::move(varying)};
}

} // namespace

Settings& settings() {
  static Settings instance;
  return instance;
}

void tell_fault(const std::string& group, const std::string& fault, bool strict) {
  TORCH_CHECK(!strict, "torchmdla: group ", group, ": ", fault);
  TORCH_WARN("torchmdla: a group runs in PyTorch's interpreter: ", group, ": ", fault);
}

void set_compiler(Compiler functions) {
  compiler() = std::move(functions);
}

void set_background(Background function) {
  run_beside() = std::move(function);
}

CompilationGroup::CompilationGroup(GroupDescription description)
    : group_(std::move(description)), name_(group_.name + "_" + std::to_string(number_)),
      has_run_(group_.has_run) {
  enter_group(this);
}

CompilationGroup::~CompilationGroup() {
  leave_group(this);
}

CompilationGroup::CompilationGroup(const Node* node) : CompilationGroup(node, InputPaths(node)) {}

CompilationGroup::CompilationGroup(const Node* node, InputPaths inputs)
    : CompilationGroup(describe(node, std::move(inputs))) {}

void CompilationGroup::run(Stack& stack) {
  RECORD_FUNCTION(name_, c10::ArrayRef<const c10::IValue>());
  auto known = specialisations_.load();
  known->prefetch();
  group_.inputs.expand(stack);
  if (!settings().enabled.load(std::memory_order_relaxed))
    return fall_back(stack, Fallback::switched_off);
  Signature signature;
  const auto inputs = torch::jit::last(stack, group_.inputs.num_inputs());
  const bool followed = needs_gradients(inputs);
  if (settings().keep_inputs.load(std::memory_order_relaxed)) keep_inputs(inputs);
  if (const auto reason = reason_to_fall_back(inputs, followed, signature)) {
    count_fallback(*reason);
    return fall_back(stack);
  }
  if (followed) {
    if (expected_backward_.count_call()) return run_as_pytorch(stack);
  } else if (is_first_run() && !adopt(signature, inputs)) {
    return fall_back(stack);
  }
  while (!run_known(*known, signature, followed, stack)) {
    if (!adopt(signature, inputs)) {
      known.reset(); // entries evicted for the new specialisation are freed at once
      return specialise(signature, followed, stack);
    }
    known = specialisations_.load();
  }
}

// Run the specialisation for this signature. Return false if the group does not have one.
bool CompilationGroup::run_known(const Specialisations& known, const Signature& signature,
                                 bool followed, Stack& stack) {
  if (const auto* found = known.find(signature))
    return run_specialised(*found, followed, stack), true;
  if (!settings().dynamic.load(std::memory_order_relaxed)) return false;
  Symbols values;
  const auto* found = known.find_dynamic(signature, values);
  if (found) run_compiled(*found, values, followed, stack);
  return found != nullptr;
}

bool CompilationGroup::is_known(const Signature& signature) const {
  const auto known = specialisations_.load();
  Symbols values;
  return known->find(signature) || (settings().dynamic && known->find_dynamic(signature, values));
}

// Return whether the group has code for the call. Load it if a package has it.
bool CompilationGroup::adopt(const Signature& signature, c10::ArrayRef<c10::IValue> inputs) {
  if (!are_any_packaged() || !settings().packages) return false;
  const std::lock_guard<ProcessMutex> guard(adopting_);
  if (is_known(signature)) return true; // another thread loaded it
  for (const auto& one : packaged()) {
    if (one->pattern && !settings().dynamic) continue;
    const bool has_bits = std::ranges::all_of(one->bits, [&](const auto& wanted) {
      const auto& [input, bits] = wanted;
      return input < inputs.size() && inputs[input].isTensor() &&
             bits_of(inputs[input].toTensor()) == bits;
    });
    if (one->covers(signature) && has_bits && load(*one, inputs)) return true;
  }
  return false;
}

// Return the packaged specialisations of the group's structure. `adopting_` must be held.
Packaged CompilationGroup::packaged() {
  if (!structure_) structure_ = group_.subgraph->structure(group_.device, group_.parameters);
  return *structure_ ? find_packaged(**structure_) : Packaged();
}

bool CompilationGroup::load(const PackagedSpecialisation& packaged,
                            std::optional<c10::ArrayRef<c10::IValue>> inputs) {
  RECORD_USER_SCOPE("mdla::load");
  try {
    auto made = std::make_shared<Specialisation>();
    made->signature = packaged.signature;
    made->pattern = packaged.pattern;
    made->sizes = packaged.sizes;
    if (packaged.left_out)
      split(*made, *packaged.left_out);
    else
      made->executable = packaged.load(*group_.subgraph, group_.inputs.num_inputs()),
      made->outcome = Outcome::compiled;
    const auto* executable = made->executable.get();
    // Only types can be checked without inputs. If types are not enough, the first call
    // checks its inputs.
    if (executable && !inputs && !executable->takes(group_.subgraph->input_types())) return false;
    TORCH_CHECK(!executable || !inputs || executable->takes(*inputs),
                "the code takes inputs that the group does not have");
    publish(std::move(made));
  } catch (const std::exception& error) {
    statistics().packages.refused.count(text_of(error));
    return false;
  }
  ++statistics().packages.specialisations;
  return true;
}

// Make the specialisation run in groups around `left_out` and the conditional nodes. If no node is
// left for groups, eager operators run the whole subgraph.
void CompilationGroup::split(Specialisation& specialisation, std::vector<size_t> left_out) {
  specialisation.outcome = Outcome::split;
  specialisation.division = divide(left_out);
  if (!specialisation.division)
    specialisation.division = [this](Stack& stack) { group_.subgraph->run(stack); };
  specialisation.left_out = std::move(left_out);
}

void CompilationGroup::prepare() {
  const std::lock_guard<ProcessMutex> guard(adopting_);
  for (const auto& one : packaged())
    if (one->bits.empty() && !specialisations_.load()->find(one->signature))
      load(*one, std::nullopt);
  for (const auto& one : compiled())
    one->executable->pack_constants();
}

std::optional<std::string> CompilationGroup::reason_to_fall_back(c10::ArrayRef<c10::IValue> inputs,
                                                                 bool followed,
                                                                 Signature& signature) const {
  if (dispatch_mode_active()) return describe(Fallback::dispatch_mode);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto reason = reason_not_to_read(inputs[i]);
    if (reason == Fallback::tangent) return describe(*reason);
    if (reason || !append_signature(inputs[i], signature))
      return describe(Fallback::input_kind) + (": " + group_.subgraph->input_name(i)) + " is " +
             described(inputs[i]);
  }
  append_modes(signature);
  if (followed && !may_save(inputs)) return describe(Fallback::saved_tensors);
  return std::nullopt;
}

bool CompilationGroup::is_first_run() {
  return !has_run_.load(std::memory_order_relaxed) && !has_run_.exchange(true);
}

// Run the call in differentiable graphs, which keep the activations. If that is not possible, run
// eager operators, which autograd records.
void CompilationGroup::run_as_pytorch(Stack& stack) {
  const auto below = stack.size() - group_.inputs.num_inputs();
  ++statistics().training_calls;
  calls_.training.fetch_add(1, std::memory_order_relaxed);
  if (!group_.subgraph->run_differentiable(stack)) fall_back(stack, Fallback::requires_grad);
  expected_backward_.watch(torch::jit::last(stack, stack.size() - below));
}

void CompilationGroup::run_specialised(const Specialisation& specialisation, bool followed,
                                       Stack& stack) {
  switch (specialisation.outcome) {
  case Outcome::compiled:
    return run_compiled(specialisation, {}, followed, stack);
  case Outcome::split:
    if (specialisation.raise && strict()) specialisation.raise();
    return specialisation.division(stack);
  case Outcome::failed:
    if (strict()) specialisation.raise();
    for (auto* counter : specialisation.failure_counters)
      counter->fetch_add(1, std::memory_order_relaxed);
    return fall_back(stack);
  }
}

void CompilationGroup::run_compiled(const Specialisation& specialisation,
                                    c10::ArrayRef<int64_t> symbols, bool followed, Stack& stack) {
  if (followed)
    run_with_node(specialisation, symbols, stack);
  else if (!call(specialisation, symbols, stack))
    fall_back(stack);
}

// Run the compiled code with an autograd node. The first call with such inputs runs eager
// operators, which show the outputs that require grad.
void CompilationGroup::run_with_node(const Specialisation& specialisation,
                                     c10::ArrayRef<int64_t> symbols, Stack& stack) {
  const auto inputs = torch::jit::last(stack, group_.inputs.num_inputs());
  const auto below = stack.size() - inputs.size();
  const auto required = requires_grad(inputs);
  const auto outputs = specialisation.gradients.find(required);
  if (outputs) {
    const auto node =
        c10::make_intrusive<GroupBackward>(group_.subgraph, inputs, expected_backward_);
    const c10::AutoGradMode no_grad(false);
    if (call(specialisation, symbols, stack))
      return node->set_history(std::span(stack).subspan(below), *outputs);
  }
  fall_back(stack);
  const auto results = torch::jit::last(stack, stack.size() - below);
  specialisation.gradients.add(required, requires_grad(results));
  expected_backward_.watch(results);
}

// Run the compiled code. Return false, with the stack unchanged, if the code reports an error.
bool CompilationGroup::call(const Specialisation& specialisation, c10::ArrayRef<int64_t> symbols,
                            Stack& stack) {
  std::optional<DeviceFault> fault;
  try {
    specialisation.last_use.note();
    const bool done = specialisation.executable->run(stack, group_.inputs.num_inputs(), symbols);
    if (specialisation.last_use.note()) note_growth(specialisation);
    if (done) {
      calls_.compiled.add();
      return true;
    }
  } catch (const DeviceFault& error) {
    fault.emplace(error);
  }
  if (!fault) {
    count_fallback(Fallback::status);
    return false;
  }
  if (strict() || fault->held || !fault_told_.exchange(true))
    compiler().tell_fault(group_.name, fault->what(), strict());
  count_fallback(fault->what());
  return false;
}

// Handle memory growth during a call. The specialisation may have packed its parameters again.
void CompilationGroup::note_growth(const Specialisation& specialisation) const {
  constexpr Grace::Clock::time_point never{};
  const auto unpacked = specialisation.unpacked.exchange(never);
  if (unpacked != never) specialisation.grace.back(unpacked, keep_time());
  keep_to_memory_limit();
}

// Handle the first call with new inputs. Eager kernels compute its results: the compiler needs
// their record, and the user should see their errors.
void CompilationGroup::specialise(const Signature& signature, bool followed, Stack& stack) {
  if (!compiler().compile) {
    TORCH_CHECK(!strict(), "torchmdla: ", describe(Fallback::no_compiler));
    return fall_back(stack, Fallback::no_compiler);
  }
  if (const auto postponed = find_postponed(signature))
    return run_specialised(*postponed, followed, stack);
  Fallback refusal;
  auto claimed = claim(signature, refusal, torch::jit::last(stack, group_.inputs.num_inputs()));
  if (!claimed) {
    const auto known = specialisations_.load();
    const auto* split = known->newest_split();
    if (split && refusal == Fallback::too_many_specialisations)
      return run_specialised(*split, followed, stack);
    return fall_back(stack, refusal);
  }
  calls_.recorded.fetch_add(1, std::memory_order_relaxed);
  auto record = recorded(stack);
  compile(std::move(claimed), std::move(record));
}

Record CompilationGroup::recorded(Stack& stack) const {
  RECORD_USER_SCOPE("mdla::record");
  const auto inputs = torch::jit::last(stack, group_.inputs.num_inputs());
  std::vector<int64_t> bits;
  for (const auto index : group_.parameters)
    bits.push_back(inputs[index].isTensor() ? bits_of(inputs[index].toTensor()) : 0);
  auto record = group_.subgraph->run_and_record(stack);
  for (size_t i = 0; i < bits.size(); ++i)
    if (bits[i] != 0) std::get<TensorMeta>(record.at(group_.parameters[i]).seen).bits = bits[i];
  return record;
}

bool CompilationGroup::Claim::includes(const Signature& other) const {
  Symbols values;
  return other == signature || (pattern && pattern->covers(other, values));
}

// Return the right to compile for `signature`. Given the call's `inputs`, the right may include
// other sizes. Return null and set `refusal` if this thread must not compile.
std::shared_ptr<CompilationGroup::Claim>
CompilationGroup::claim(const Signature& signature, Fallback& refusal,
                        std::optional<c10::ArrayRef<c10::IValue>> inputs) {
  const Guard guard(mutex_);
  std::erase_if(claims_, [](const Claim* other) { return other->process != process_number(); });
  auto reason = this->refusal(signature);
  if (inputs && is_known(signature)) reason = Fallback::being_compiled;
  if (reason) {
    refusal = *reason;
    return nullptr;
  }
  auto claimed = std::make_shared<Claim>(shared_from_this(), signature);
  if (inputs && settings().dynamic) {
    claimed->kinds = entry_kinds_of_call(*inputs);
    claimed->pattern = plan(*claimed);
  }
  claims_.push_back(claimed.get());
  return claimed;
}

std::optional<Fallback> CompilationGroup::refusal(const Signature& signature) const {
  const auto limit = static_cast<size_t>(max_specialisations());
  const auto known = specialisations_.load();
  if (known->size() + claims_.size() >= limit) return Fallback::too_many_specialisations;
  const bool claimed = std::any_of(claims_.begin(), claims_.end(),
                                   [&](const Claim* other) { return other->includes(signature); });
  return claimed || known->find(signature) ? std::optional(Fallback::being_compiled) : std::nullopt;
}

// Return the pattern of sizes to compile for, or nullopt to compile for one signature.
std::optional<Pattern> CompilationGroup::plan(const Claim& claim) const {
  const auto not_again = refused();
  auto before = taken_out_.pattern_for(claim.signature);
  if (before && !not_again.contains(before->places)) return before;
  auto earlier = taken_out_.signatures();
  const auto with_code = compiled();
  for (const auto& specialisation : with_code)
    earlier.push_back(&specialisation->signature);
  // Many sizes may arrive before the first one is compiled in the background.
  for (const Claim* other : claims_)
    earlier.push_back(&other->signature);
  if (auto chosen = choose_pattern(claim.signature, claim.kinds, earlier, not_again)) return chosen;
  if (auto chosen = pattern_of_growth(claim.signature, claim.kinds, earlier, not_again))
    return chosen;
  return pattern_of_varying(claim.signature, claim.kinds, not_again);
}

// Give the claim a pattern in which `size` is a symbol. Return false if that is not possible.
bool CompilationGroup::plan_without(int64_t size, Claim& claim) {
  if (claim.kinds.empty()) return false;
  const Guard guard(mutex_);
  claim.pattern = pattern_without(size, claim.signature, claim.kinds, refused());
  return claim.pattern.has_value();
}

// Return the places that must not be symbols any more.
std::set<SymbolPlaces> CompilationGroup::refused() const {
  std::set<SymbolPlaces> result;
  for (const auto& [places, count] : refusals_)
    if (count >= most_refusals) result.insert(places);
  std::map<SymbolPlaces, int> made;
  const auto known = specialisations_.load();
  for (const auto& specialisation : known->dynamic())
    if (++made[specialisation->pattern->places] >= most_parts)
      result.insert(specialisation->pattern->places);
  return result;
}

EntryKinds CompilationGroup::entry_kinds_of_call(c10::ArrayRef<c10::IValue> inputs) const {
  EntryKinds result;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool is_parameter =
        std::ranges::find(group_.parameters, static_cast<int64_t>(i)) != group_.parameters.end();
    size_t number = 0;
    for (auto kind : entry_kinds(inputs[i])) {
      if (is_parameter)
        kind = kind >= EntryKind::number ? EntryKind::parameter_size : EntryKind::constant;
      else if (kind >= EntryKind::number && is_known_to_vary({i, number++}))
        kind = EntryKind::varying_number;
      result.push_back(kind);
    }
  }
  result.push_back(EntryKind::constant); // the modes
  return result;
}

bool CompilationGroup::is_known_to_vary(const VaryingNumber& number) const {
  return std::ranges::find(group_.varying, number) != group_.varying.end();
}

void CompilationGroup::release(const Claim& claim) {
  const Guard guard(mutex_);
  claims_.erase(std::remove(claims_.begin(), claims_.end(), &claim), claims_.end());
}

void CompilationGroup::compile(std::shared_ptr<Claim> claim, Record record) {
  if (background()) {
    run_beside()([claim = std::move(claim), record = std::move(record),
                  in_inference = c10::InferenceMode::is_enabled()] {
      const c10::InferenceMode inference(in_inference);
      claim->group->compile(*claim, record);
    });
    return;
  }
  compile(*claim, record);
  if (!strict()) return;
  if (const auto postponed = find_postponed(claim->signature)) postponed->raise();
  const auto known = specialisations_.load();
  const auto* made = known->find(claim->signature);
  if (made && made->raise) made->raise();
}

void CompilationGroup::compile(Claim& claim, const Record& record) {
  RECORD_USER_SCOPE("mdla::compile");
  const c10::AutoGradMode no_grad(false);
  // Import reads PyTorch's default dtype, which may have changed before background compilation. A
  // later call compiles in that case.
  if (!has_default_dtype(claim.signature)) return;
  if (!group_.subgraph->conditions_hold(record)) {
    auto made = std::make_shared<Specialisation>();
    made->signature = claim.signature;
    split(*made, {});
    return publish(std::move(made));
  }
  try {
    if (!claim.pattern || !compile_dynamic(claim, record)) compile_static(claim, record);
  } catch (const CompileFailure& failure) {
    postpone(claim.signature, failure);
  }
}

// Compile for all sizes that the claim's pattern covers. Return false if that is not possible.
// Throw CompileFailure if a later retry may succeed.
bool CompilationGroup::compile_dynamic(const Claim& claim, const Record& record) {
  auto made = std::make_shared<Specialisation>();
  made->pattern = *claim.pattern;
  made->signature = made->pattern->typical;
  SymbolPlaces places;
  for (size_t i = 0; i < claim.kinds.size(); ++i)
    if (claim.kinds[i] >= EntryKind::parameter_size) places.push_back(made->pattern->places[i]);
  try {
    auto compiled = compiler().compile_dynamic({{*group_.subgraph, record, group_.parameters,
                                                 group_.device, bf16_products(claim.signature)},
                                                std::move(places),
                                                made->pattern->typical_values(),
                                                made->pattern->written_out});
    made->executable = std::move(compiled.executable);
    made->sizes = std::move(compiled.sizes);
    made->outcome = Outcome::compiled;
  } catch (const CompileFailure& failure) {
    if (failure.retry_after) throw;
    statistics().not_dynamic.count(failure.what());
    calls_.not_dynamic.count(failure.what());
    const Guard guard(mutex_);
    refusals_[claim.pattern->places] += failure.elsewhere ? 1 : most_refusals;
    return false;
  }
  ++statistics().specialisations;
  ++statistics().dynamic;
  publish(std::move(made));
  return true;
}

// Compile for the claim's signature alone, or for all sizes if a size is too large to unroll. Throw
// CompileFailure if a later retry may succeed.
void CompilationGroup::compile_static(Claim& claim, const Record& record) {
  auto made = std::make_shared<Specialisation>();
  made->signature = claim.signature;
  std::function<void()> warn;
  try {
    made->executable = compiler().compile({*group_.subgraph, record, group_.parameters,
                                           group_.device, bf16_products(claim.signature)});
    made->outcome = Outcome::compiled;
    ++statistics().specialisations;
  } catch (const CompileFailure& failure) {
    if (failure.retry_after) throw;
    if (failure.unroll_limit_exceeded && plan_without(*failure.unroll_limit_exceeded, claim) &&
        compile_dynamic(claim, record))
      return;
    note_failure(*made, failure);
    if (!failure.left_out.empty()) made->division = divide(failure.left_out);
    if (made->division) made->outcome = Outcome::split, made->left_out = failure.left_out;
    if (!strict()) warn = [warn = failure.warn, split = bool(made->division)] { warn(split); };
  }
  publish(std::move(made));
  if (warn) warn();
}

// Return the division that leaves out these nodes. Specialisations that leave out the same nodes
// share it.
Subgraph::Division CompilationGroup::divide(const std::vector<size_t>& left_out) {
  const auto known = [&] {
    const Guard guard(mutex_);
    const auto found = divisions_.find(left_out);
    return found == divisions_.end() ? std::nullopt : std::optional(found->second);
  };
  if (auto division = known()) return *division;
  // The lock is not held here, because `divide` may wait for the GIL.
  auto division = group_.subgraph->divide(left_out, group_.parameters);
  const Guard guard(mutex_);
  return divisions_.emplace(left_out, std::move(division)).first->second;
}

void CompilationGroup::note_failure(Specialisation& specialisation, const CompileFailure& failure) {
  specialisation.failure = failure.what();
  specialisation.raise = failure.raise;
  for (auto* counts : {&statistics().fallbacks, &calls_.fallbacks})
    specialisation.failure_counters.push_back(&counts->counter(specialisation.failure));
}

// Remember a failure until it may be retried.
void CompilationGroup::postpone(const Signature& signature, const CompileFailure& failure) {
  auto failed = std::make_shared<Specialisation>();
  failed->signature = signature;
  note_failure(*failed, failure);
  {
    const Guard guard(mutex_);
    postponed_.push_back({failed, std::chrono::steady_clock::now() + *failure.retry_after});
  }
  if (!strict()) failure.warn(/*divided=*/false);
}

Specialisations::Entry CompilationGroup::find_postponed(const Signature& signature) {
  const auto now = std::chrono::steady_clock::now();
  const Guard guard(mutex_);
  std::erase_if(postponed_, [&](const Postponed& one) { return one.until <= now; });
  const auto found = std::find_if(postponed_.begin(), postponed_.end(), [&](const Postponed& one) {
    return one.failed->signature == signature;
  });
  return found == postponed_.end() ? nullptr : found->failed;
}

void CompilationGroup::publish(std::shared_ptr<Specialisation> made) {
  ++memory_use().growths;
  made->last_use.note();
  {
    const Guard guard(mutex_);
    if (const auto taken = taken_out_.made_again(*made)) made->grace.back(*taken, keep_time());
    specialisations_.store(
        std::make_shared<const Specialisations>(specialisations_.load()->with(std::move(made))));
  }
  keep_to_memory_limit();
}

std::vector<Specialisations::Entry> CompilationGroup::compiled() const {
  const auto known = specialisations_.load();
  std::vector<Specialisations::Entry> found;
  for (const auto* entries : {&known->fixed(), &known->dynamic()})
    std::ranges::copy_if(*entries, std::back_inserter(found),
                         [](const auto& entry) { return entry->executable != nullptr; });
  return found;
}

bool CompilationGroup::take_out(const Specialisations::Entry& entry) {
  std::shared_ptr<const Specialisations> before; // destroyed after the lock is released
  const Guard guard(mutex_);
  before = specialisations_.load();
  auto after = before->without(entry);
  if (after.size() == before->size()) return false;
  taken_out_.add(*entry);
  specialisations_.store(std::make_shared<const Specialisations>(std::move(after)));
  return true;
}

template <class Reason> void CompilationGroup::count_fallback(const Reason& reason) {
  statistics().fallbacks.count(reason);
  calls_.fallbacks.count(reason);
}

void CompilationGroup::fall_back(Stack& stack, Fallback reason) {
  count_fallback(reason);
  fall_back(stack);
}

void CompilationGroup::fall_back(Stack& stack) {
  RECORD_USER_SCOPE("mdla::fall_back");
  group_.subgraph->run(stack);
}

void CompilationGroup::keep_inputs(c10::ArrayRef<c10::IValue> inputs) {
  std::vector<c10::IValue> kept(inputs.begin(), inputs.end());
  const Guard guard(mutex_);
  last_inputs_.swap(kept);
}

GroupReport CompilationGroup::report() const {
  GroupReport made{number_,
                   name_,
                   group_.device,
                   group_.subgraph,
                   group_.parameters,
                   calls_.compiled.total(),
                   calls_.recorded,
                   calls_.training,
                   calls_.fallbacks.counts(),
                   calls_.not_dynamic.counts(),
                   {},
                   {}};
  const auto known = specialisations_.load();
  for (const auto* entries : {&known->fixed(), &known->dynamic()})
    for (const auto& one : *entries)
      made.specialisations.push_back(
          {one->executable, one->failure, one->signature, one->pattern,
           one->outcome == Outcome::split ? std::optional(one->left_out) : std::nullopt});
  const Guard guard(mutex_);
  made.inputs = last_inputs_;
  return made;
}

GroupCounts CompilationGroup::counts() const {
  const int64_t calls = calls_.compiled.total() + calls_.recorded + calls_.fallbacks.total();
  return {number_, calls, calls_.training, static_cast<int64_t>(specialisations_.load()->size())};
}

} // namespace torchmdla
