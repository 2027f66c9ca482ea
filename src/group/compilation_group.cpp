#include "compilation_group.h"

#include "fusion/fusion_pass.h"
#include "fusion/waits.h"
#include "memory_limit.h"
#include "runtime/exception_text.h"
#include "runtime/memory.h"
#include "runtime/quantisation.h"
#include "script_subgraph.h"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <new>
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

Background& background_executor() {
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

// Return 4 if four bits are enough for every value of an int8 tensor, 1 if an int64 vector, such as
// zero points, has only zeros, else 0.
int64_t bits_of(const at::Tensor& tensor) {
  constexpr int zeros = 1, few = 4, limit = 1 << (few - 1);
  if (!tensor.defined() || tensor.numel() == 0 || !is_plain_tensor(tensor) ||
      !tensor.is_non_overlapping_and_dense())
    return 0;
  if (tensor.scalar_type() == at::kLong && tensor.dim() == 1) {
    const std::span values(tensor.const_data_ptr<int64_t>(), tensor.numel());
    return std::ranges::all_of(values, [](int64_t value) { return value == 0; }) ? zeros : 0;
  }
  if (tensor.scalar_type() != at::kChar) return 0;
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
std::string describe_unsupported(const c10::IValue& input) {
  if (input.isTensor())
    return input.toTensor().toString() + " with " + toString(input.toTensor().key_set() - plain);
  if (input.isTensorList())
    for (const auto& element : input.toListRef())
      if (!is_plain_tensor(element.toTensor()))
        return "a list with a " + describe_unsupported(element);
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
constexpr int max_refusals = 3;

// Number of dynamic specialisations of one pattern after which the pattern is refused. Their
// conditions then divide the sizes into too many parts.
constexpr int max_specialisations_of_pattern = 8;

GroupDescription describe(const Node* node, InputPaths inputs) {
  const auto device = node->s(device_attribute());
  auto subgraph = std::make_shared<ScriptSubgraph>(node->g(attr::Subgraph), device,
                                                   has_external_writes(node), varying_inputs(node));
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
          std::move(varying),
          node->hasAttribute(pending_attribute())};
}

// Return the version of an input's content: 0 if it cannot change, nullopt if it is not known.
std::optional<int64_t> version_of(const c10::IValue& input) {
  if (input.isTensor() && input.toTensor().defined()) {
    if (input.toTensor().is_inference()) return std::nullopt;
    return input.toTensor()._version();
  }
  return input.isList() ? std::nullopt : std::optional<int64_t>(0);
}

} // namespace

Settings& settings() {
  static Settings instance;
  return instance;
}

void report_fault(const std::string& group, const std::string& fault, bool strict) {
  TORCH_CHECK(!strict, "torchmdla: group ", group, ": ", fault);
  TORCH_WARN("torchmdla: a group runs in PyTorch's interpreter: ", group, ": ", fault);
}

void set_compiler(Compiler functions) {
  compiler() = std::move(functions);
}

void set_background(Background function) {
  background_executor() = std::move(function);
}

bool may_read(c10::ArrayRef<c10::IValue> inputs) {
  return !dispatch_mode_active() && std::ranges::none_of(inputs, [](const c10::IValue& input) {
    return reason_not_to_read(input).has_value();
  });
}

CompilationGroup::CompilationGroup(GroupDescription description)
    : group_(std::move(description)), name_(group_.name + "_" + std::to_string(number_)),
      has_run_(group_.has_run),
      training_steps_(group_.subgraph, group_.device, group_.parameters, backward_predictor_) {
  register_group(this);
}

CompilationGroup::~CompilationGroup() {
  unregister_group(this);
}

CompilationGroup::CompilationGroup(const Node* node) : CompilationGroup(node, InputPaths(node)) {}

CompilationGroup::CompilationGroup(const Node* node, InputPaths inputs)
    : CompilationGroup(describe(node, std::move(inputs))) {}

void CompilationGroup::run(Stack& stack, bool gives_up_inputs) {
  RECORD_FUNCTION(name_, c10::ArrayRef<const c10::IValue>());
  auto specialisations = specialisations_.load();
  specialisations->prefetch();
  group_.inputs.expand(stack);
  if (!settings().enabled.load(std::memory_order_relaxed))
    return fall_back(stack, Fallback::switched_off);
  Signature signature;
  const auto inputs = torch::jit::last(stack, group_.inputs.num_inputs());
  const CallKind kind{needs_gradients(inputs), gives_up_inputs};
  if (settings().keep_inputs.load(std::memory_order_relaxed)) keep_inputs(inputs);
  if (const auto reason = reason_to_fall_back(inputs, kind.is_recorded_by_autograd, signature)) {
    count_fallback(*reason);
    return fall_back(stack);
  }
  // Only compiled code reads pending inputs.
  if (group_.is_asynchronous && (kind.is_recorded_by_autograd || !has_code(signature)))
    wait_for(inputs);
  if (kind.is_recorded_by_autograd) {
    if (backward_predictor_.count_call()) return run_for_training(stack);
  } else if (is_first_run() && !load_packaged(signature, inputs)) {
    return fall_back(stack);
  }
  while (!run_existing(*specialisations, signature, kind, stack)) {
    if (!load_packaged(signature, inputs)) {
      specialisations.reset(); // entries evicted for the new specialisation are freed at once
      return specialise(signature, kind, stack);
    }
    specialisations = specialisations_.load();
  }
}

// Run the specialisation for this signature. Return false if the group does not have one.
bool CompilationGroup::run_existing(const Specialisations& specialisations,
                                    const Signature& signature, CallKind kind, Stack& stack) {
  if (const auto* match = specialisations.find(signature))
    return run_specialised(*match, kind, stack), true;
  if (!settings().dynamic.load(std::memory_order_relaxed)) return false;
  Symbols values;
  const auto* match = specialisations.find_dynamic(signature, values);
  if (match) run_compiled(*match, values, kind, stack);
  return match != nullptr;
}

bool CompilationGroup::is_known(const Signature& signature) const {
  const auto specialisations = specialisations_.load();
  Symbols values;
  return specialisations->find(signature) ||
         (settings().dynamic && specialisations->find_dynamic(signature, values));
}

// Return whether compiled code runs a call, and not groups of a division or operators.
bool CompilationGroup::has_code(const Signature& signature) const {
  const auto specialisations = specialisations_.load();
  if (const auto* match = specialisations->find(signature))
    return match->outcome == Outcome::compiled;
  Symbols values;
  return settings().dynamic && specialisations->find_dynamic(signature, values);
}

// Return whether the group has code for the call. Load it if a package has it.
bool CompilationGroup::load_packaged(const Signature& signature,
                                     c10::ArrayRef<c10::IValue> inputs) {
  if (!are_any_packaged() || !settings().packages) return false;
  const std::lock_guard<ForkRobustMutex> guard(package_mutex_);
  if (is_known(signature)) return true; // another thread loaded it
  for (const auto& entry : packaged_specialisations()) {
    if (entry->pattern && !settings().dynamic) continue;
    const bool has_bits = std::ranges::all_of(entry->bits, [&](const auto& requirement) {
      const auto& [input, bits] = requirement;
      return input < inputs.size() && inputs[input].isTensor() &&
             bits_of(inputs[input].toTensor()) == bits;
    });
    if (entry->covers(signature) && has_bits && load(*entry, inputs)) return true;
  }
  return false;
}

// Return the packaged specialisations of the group's structure. `package_mutex_` must be held.
PackagedList CompilationGroup::packaged_specialisations() {
  if (!structure_) structure_ = group_.subgraph->structure(group_.device, group_.parameters);
  return *structure_ ? find_packaged(**structure_) : PackagedList();
}

bool CompilationGroup::load(const PackagedSpecialisation& packaged,
                            std::optional<c10::ArrayRef<c10::IValue>> inputs) {
  RECORD_USER_SCOPE("mdla::load");
  try {
    auto specialisation = std::make_shared<Specialisation>();
    specialisation->signature = packaged.signature;
    specialisation->pattern = packaged.pattern;
    specialisation->sizes = packaged.sizes;
    if (packaged.excluded_nodes)
      split(*specialisation, *packaged.excluded_nodes);
    else
      specialisation->executable = packaged.load(*group_.subgraph, group_.inputs.num_inputs()),
      specialisation->outcome = Outcome::compiled;
    const auto* executable = specialisation->executable.get();
    // Only types can be checked without inputs. If types are not enough, the first call
    // checks its inputs.
    if (executable && !inputs && !executable->accepts(group_.subgraph->input_types())) return false;
    TORCH_CHECK(!executable || !inputs || executable->accepts(*inputs),
                "the code takes inputs that the group does not have");
    publish(std::move(specialisation));
  } catch (const std::exception& error) {
    statistics().packages.refused.count(text_of(error));
    return false;
  }
  ++statistics().packages.specialisations;
  return true;
}

// Make the specialisation run in groups around `excluded_nodes` and the conditional nodes. If no
// node is left for groups, eager operators run the whole subgraph.
void CompilationGroup::split(Specialisation& specialisation, std::vector<size_t> excluded_nodes) {
  specialisation.outcome = Outcome::split;
  specialisation.division = divide(excluded_nodes);
  if (!specialisation.division)
    specialisation.division = [this](Stack& stack) { group_.subgraph->run(stack); };
  specialisation.excluded_nodes = std::move(excluded_nodes);
}

void CompilationGroup::prepare() {
  const std::lock_guard<ForkRobustMutex> guard(package_mutex_);
  for (const auto& entry : packaged_specialisations())
    if (entry->bits.empty() && !specialisations_.load()->find(entry->signature))
      load(*entry, std::nullopt);
  for (const auto& entry : compiled())
    entry->executable->pack_constants();
}

std::optional<std::string> CompilationGroup::reason_to_fall_back(c10::ArrayRef<c10::IValue> inputs,
                                                                 bool is_recorded_by_autograd,
                                                                 Signature& signature) const {
  if (dispatch_mode_active()) return describe(Fallback::dispatch_mode);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto reason = reason_not_to_read(inputs[i]);
    if (reason == Fallback::tangent) return describe(*reason);
    if (reason || !append_signature(inputs[i], signature))
      return describe(Fallback::input_kind) + (": " + group_.subgraph->input_name(i)) + " is " +
             describe_unsupported(inputs[i]);
  }
  append_modes(signature);
  if (is_recorded_by_autograd && !may_save(inputs)) return describe(Fallback::saved_tensors);
  return std::nullopt;
}

bool CompilationGroup::is_first_run() {
  return !has_run_.load(std::memory_order_relaxed) && !has_run_.exchange(true);
}

// Run the call in programs of a training step. If that is not possible, run it in differentiable
// graphs, which keep the activations, or else by eager operators, which autograd records.
void CompilationGroup::run_for_training(Stack& stack) {
  const auto below = stack.size() - group_.inputs.num_inputs();
  const auto outcome = training_steps_.run(stack, group_.inputs.num_inputs());
  if (outcome == TrainingSteps::Outcome::compiled) return calls_.compiled.add();
  ++statistics().training_calls;
  calls_.training.fetch_add(1, std::memory_order_relaxed);
  if (outcome == TrainingSteps::Outcome::observed) return;
  if (!group_.subgraph->run_differentiable(stack)) fall_back(stack, Fallback::requires_grad);
  backward_predictor_.add_backward_hooks(torch::jit::last(stack, stack.size() - below));
}

void CompilationGroup::run_specialised(const Specialisation& specialisation, CallKind kind,
                                       Stack& stack) {
  switch (specialisation.outcome) {
  case Outcome::compiled:
    return run_compiled(specialisation, {}, kind, stack);
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
                                    c10::ArrayRef<int64_t> symbols, CallKind kind, Stack& stack) {
  if (is_check_speed_on() && specialisation.executable->competes_with_eager()) {
    const auto* result = check_speed(specialisation, symbols, stack);
    if (result && result->replacement) return result->replacement(stack);
  }
  if (kind.is_recorded_by_autograd)
    run_with_node(specialisation, symbols, stack);
  else if (!call(specialisation, symbols, kind, stack))
    fall_back(stack);
}

// Return the result of the comparison with PyTorch's operators. Compare in the first calls. Return
// null if that is not possible now.
const SpeedResult* CompilationGroup::check_speed(const Specialisation& specialisation,
                                                 c10::ArrayRef<int64_t> symbols,
                                                 const Stack& stack) {
  const auto& results = specialisation.speed;
  const auto key = SpeedKey::of_call(symbols);
  if (const auto* known = results.find(key)) return known;
  const std::unique_lock turn(results.turn(), std::try_to_lock);
  if (!turn || !can_compare(results.needed_budget())) return nullptr;
  if (const auto* known = results.find(key)) return known; // another thread was faster
  const auto inputs = torch::jit::last(stack, group_.inputs.num_inputs());
  specialisation.use.update();
  auto finding = compare(specialisation, key, symbols, inputs);
  limit_growth(specialisation);
  if (!finding) return nullptr;
  auto division = replacement(*finding);
  if (division) {
    ++statistics().speed.replaced;
    // Calls with another number of threads or other sizes may need the packs again.
    if (specialisation.executable->packed_bytes() > 0) specialisation.executable->drop_packed();
  }
  return results.add({key, std::move(*finding), std::move(division)});
}

// Compare the code with PyTorch's operators on these inputs, or take the stored result. Return
// nullopt if the budget does not suffice.
std::optional<SpeedFinding> CompilationGroup::compare(const Specialisation& specialisation,
                                                      const SpeedKey& key,
                                                      c10::ArrayRef<int64_t> symbols,
                                                      c10::ArrayRef<c10::IValue> inputs) {
  const c10::AutoGradMode no_grad(false);
  const SpeedRequest request{specialisation.executable, group_.name, group_.device, key};
  auto& progress = specialisation.speed.progress(key);
  SpeedComparison comparison(*specialisation.executable, *group_.subgraph, inputs, symbols,
                             progress);
  try {
    if (progress.rounds == 0) {
      if (group_.subgraph->writes_inputs() || !comparison.is_long()) return SpeedFinding();
      if (compiler().find_speed)
        if (auto stored = compiler().find_speed(request)) return stored;
    }
    const auto finding = comparison.run();
    // Eager's operators have read the weights and freed their intermediate results.
    specialisation.executable->page_out_parameters();
    return_freed_memory();
    specialisation.speed.needed_budget() = finding ? 0 : comparison.round_seconds();
    if (finding && !std::isinf(finding->seconds.eager) && compiler().store_speed)
      compiler().store_speed(request, *finding);
    return finding;
  } catch (const c10::Error&) {
  } catch (const std::runtime_error&) {
  } catch (const std::bad_alloc&) {
  }
  return SpeedFinding(); // the code stays: operators need more memory, or the code reports an error
}

// Return what replaces the code, or null if that stays.
Subgraph::Division CompilationGroup::replacement(const SpeedFinding& finding) {
  if (finding.choice == SpeedChoice::compiled) return nullptr;
  try {
    if (finding.choice == SpeedChoice::divided)
      if (auto division = divide(finding.excluded_nodes)) return division;
  } catch (const c10::Error&) { // the nodes cannot be left out
  }
  return [this](Stack& stack) { fall_back(stack, Fallback::slower); };
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
        c10::make_intrusive<GroupBackward>(group_.subgraph, inputs, backward_predictor_);
    const c10::AutoGradMode no_grad(false);
    if (call(specialisation, symbols, {.is_recorded_by_autograd = true}, stack))
      return node->set_history(std::span(stack).subspan(below), *outputs);
  }
  fall_back(stack);
  const auto results = torch::jit::last(stack, stack.size() - below);
  specialisation.gradients.add(required, requires_grad(results));
  backward_predictor_.add_backward_hooks(results);
}

// Enforce the limit on memory if memory has grown since the latest use of this specialisation.
void CompilationGroup::limit_growth(const Specialisation& specialisation) const {
  if (!specialisation.use.update()) return;
  specialisation.use.restore(keep_time()); // it may have packed its parameters again
  enforce_memory_limit();
}

// Run the compiled code. Return false, with the stack unchanged, if the code reports an error.
bool CompilationGroup::call(const Specialisation& specialisation, c10::ArrayRef<int64_t> symbols,
                            CallKind kind, Stack& stack) {
  std::optional<DeviceFault> fault;
  try {
    specialisation.use.update();
    const auto count = group_.inputs.num_inputs();
    const bool leaves_pending = group_.is_asynchronous && !kind.is_recorded_by_autograd;
    const bool done = specialisation.executable->run(
        stack, count, symbols, kind.gives_up_inputs,
        leaves_pending ? recovery(torch::jit::last(stack, count)) : nullptr);
    limit_growth(specialisation);
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
  note_fault(fault->what(), fault->has_python_error);
  return false;
}

// Count a failure of the device, and report the first one. Throw in strict mode, or if a Python
// exception waits to be raised.
void CompilationGroup::note_fault(const std::string& fault, bool has_python_error) {
  if (strict() || has_python_error || !is_fault_reported_.exchange(true))
    compiler().report_fault(group_.name, fault, strict());
  count_fallback(fault);
}

// Return a function that computes the outputs of a call by PyTorch's operators, if the device fails
// after its entry has returned. The function throws if an input was changed meanwhile.
decltype(PendingCall::recover) CompilationGroup::recovery(c10::ArrayRef<c10::IValue> inputs) {
  std::vector<std::optional<int64_t>> versions;
  for (const auto& input : inputs)
    versions.push_back(version_of(input));
  return [group = shared_from_this(), inputs = inputs.vec(),
          versions = std::move(versions)](const std::string& fault) {
    wait_for(inputs);
    group->note_fault(fault, /*has_python_error=*/false);
    for (size_t i = 0; i < inputs.size(); ++i)
      TORCH_CHECK(versions[i] && versions[i] == version_of(inputs[i]), "torchmdla: group ",
                  group->group_.name, ": ", fault, ". PyTorch's operators cannot compute its ",
                  "results, because ", group->group_.subgraph->input_name(i),
                  " was changed since.");
    const c10::AutoGradMode no_grad(false);
    Stack stack(inputs);
    group->group_.subgraph->run(stack);
    return stack;
  };
}

// Handle the first call with new inputs. Eager kernels compute its results: the compiler needs
// their record, and the user should see their errors.
void CompilationGroup::specialise(const Signature& signature, CallKind kind, Stack& stack) {
  if (!compiler().compile) {
    TORCH_CHECK(!strict(), "torchmdla: ", describe(Fallback::no_compiler));
    return fall_back(stack, Fallback::no_compiler);
  }
  if (const auto failed = find_retry_later(signature)) return run_specialised(*failed, kind, stack);
  Fallback refusal;
  auto ticket =
      acquire_ticket(signature, refusal, torch::jit::last(stack, group_.inputs.num_inputs()));
  if (!ticket) {
    const auto specialisations = specialisations_.load();
    const auto* split = specialisations->newest_split();
    if (split && refusal == Fallback::too_many_specialisations)
      return run_specialised(*split, kind, stack);
    return fall_back(stack, refusal);
  }
  calls_.recorded.fetch_add(1, std::memory_order_relaxed);
  auto record = run_and_record(stack);
  compile(std::move(ticket), std::move(record));
}

Record CompilationGroup::run_and_record(Stack& stack) const {
  RECORD_USER_SCOPE("mdla::record");
  const auto inputs = torch::jit::last(stack, group_.inputs.num_inputs());
  std::vector<int64_t> bits;
  for (const auto index : group_.parameters)
    bits.push_back(inputs[index].isTensor() ? bits_of(inputs[index].toTensor()) : 0);
  auto record = group_.subgraph->run_and_record(stack);
  for (size_t i = 0; i < bits.size(); ++i)
    if (bits[i] != 0) std::get<TensorMeta>(record.at(group_.parameters[i]).value).bits = bits[i];
  return record;
}

bool CompilationGroup::CompileTicket::includes(const Signature& other) const {
  Symbols values;
  return other == signature || (pattern && pattern->covers(other, values));
}

// Return the right to compile for `signature`. Given the call's `inputs`, the right may include
// other sizes. Return null and set `refusal` if this thread must not compile.
std::shared_ptr<CompilationGroup::CompileTicket>
CompilationGroup::acquire_ticket(const Signature& signature, Fallback& refusal,
                                 std::optional<c10::ArrayRef<c10::IValue>> inputs) {
  const ForkSafeLock guard(mutex_);
  std::erase_if(tickets_,
                [](const CompileTicket* other) { return other->process != process_number(); });
  auto reason = reason_not_to_compile(signature);
  if (inputs && is_known(signature)) reason = Fallback::being_compiled;
  if (reason) {
    refusal = *reason;
    return nullptr;
  }
  auto ticket = std::make_shared<CompileTicket>(shared_from_this(), signature);
  if (inputs && settings().dynamic) {
    ticket->kinds = entry_kinds_of_call(*inputs);
    ticket->pattern = plan_pattern(*ticket);
  }
  tickets_.push_back(ticket.get());
  return ticket;
}

std::optional<Fallback> CompilationGroup::reason_not_to_compile(const Signature& signature) const {
  const auto limit = static_cast<size_t>(max_specialisations());
  const auto specialisations = specialisations_.load();
  if (specialisations->size() + tickets_.size() >= limit) return Fallback::too_many_specialisations;
  const bool is_being_compiled =
      std::any_of(tickets_.begin(), tickets_.end(),
                  [&](const CompileTicket* other) { return other->includes(signature); });
  return is_being_compiled || specialisations->find(signature)
             ? std::optional(Fallback::being_compiled)
             : std::nullopt;
}

// Return the pattern of sizes to compile for, or nullopt to compile for one signature.
std::optional<Pattern> CompilationGroup::plan_pattern(const CompileTicket& ticket) const {
  const auto refused = refused_places();
  auto evicted = ghost_list_.pattern_for(ticket.signature);
  if (evicted && !refused.contains(evicted->places)) return evicted;
  auto earlier = ghost_list_.signatures();
  const auto with_code = compiled();
  for (const auto& specialisation : with_code)
    earlier.push_back(&specialisation->signature);
  // Many sizes may arrive before the first one is compiled in the background.
  for (const CompileTicket* other : tickets_)
    earlier.push_back(&other->signature);
  if (auto chosen = choose_pattern(ticket.signature, ticket.kinds, earlier, refused)) return chosen;
  if (auto chosen = pattern_of_growth(ticket.signature, ticket.kinds, earlier, refused))
    return chosen;
  return pattern_of_varying(ticket.signature, ticket.kinds, refused);
}

// Give the ticket a pattern in which `size` is a symbol. Return false if that is not possible.
bool CompilationGroup::plan_pattern_without(int64_t size, CompileTicket& ticket) {
  if (ticket.kinds.empty()) return false;
  const ForkSafeLock guard(mutex_);
  ticket.pattern = pattern_without(size, ticket.signature, ticket.kinds, refused_places());
  return ticket.pattern.has_value();
}

// Return the places that must not be symbols any more.
std::set<SymbolPlaces> CompilationGroup::refused_places() const {
  std::set<SymbolPlaces> result;
  for (const auto& [places, count] : refusals_)
    if (count >= max_refusals) result.insert(places);
  std::map<SymbolPlaces, int> counts_by_places;
  const auto specialisations = specialisations_.load();
  for (const auto& specialisation : specialisations->dynamic())
    if (++counts_by_places[specialisation->pattern->places] >= max_specialisations_of_pattern)
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

void CompilationGroup::release(const CompileTicket& ticket) {
  const ForkSafeLock guard(mutex_);
  tickets_.erase(std::remove(tickets_.begin(), tickets_.end(), &ticket), tickets_.end());
}

void CompilationGroup::compile(std::shared_ptr<CompileTicket> ticket, Record record) {
  if (background()) {
    background_executor()([ticket = std::move(ticket), record = std::move(record),
                           in_inference = c10::InferenceMode::is_enabled()] {
      const c10::InferenceMode inference(in_inference);
      ticket->group->compile(*ticket, record);
    });
    return;
  }
  compile(*ticket, record);
  if (!strict()) return;
  if (const auto failed = find_retry_later(ticket->signature)) failed->raise();
  const auto specialisations = specialisations_.load();
  const auto* specialisation = specialisations->find(ticket->signature);
  if (specialisation && specialisation->raise) specialisation->raise();
}

void CompilationGroup::compile(CompileTicket& ticket, const Record& record) {
  RECORD_USER_SCOPE("mdla::compile");
  const c10::AutoGradMode no_grad(false);
  // Import reads PyTorch's default dtype, which may have changed before background compilation. A
  // later call compiles in that case.
  if (!has_default_dtype(ticket.signature)) return;
  if (!group_.subgraph->conditions_hold(record)) {
    auto specialisation = std::make_shared<Specialisation>();
    specialisation->signature = ticket.signature;
    split(*specialisation, {});
    return publish(std::move(specialisation));
  }
  try {
    if (!ticket.pattern || !compile_dynamic(ticket, record)) compile_static(ticket, record);
  } catch (const CompileFailure& failure) {
    retry_later(ticket.signature, failure);
  }
}

// Compile for all sizes that the ticket's pattern covers. Return false if that is not possible.
// Throw CompileFailure if a later retry may succeed.
bool CompilationGroup::compile_dynamic(const CompileTicket& ticket, const Record& record) {
  auto specialisation = std::make_shared<Specialisation>();
  specialisation->pattern = *ticket.pattern;
  specialisation->signature = specialisation->pattern->typical;
  SymbolPlaces places;
  for (size_t i = 0; i < ticket.kinds.size(); ++i)
    if (ticket.kinds[i] >= EntryKind::parameter_size)
      places.push_back(specialisation->pattern->places[i]);
  try {
    auto compiled = compiler().compile_dynamic({{*group_.subgraph, record, group_.parameters,
                                                 group_.device, bf16_products(ticket.signature)},
                                                std::move(places),
                                                specialisation->pattern->typical_values(),
                                                specialisation->pattern->written_out});
    specialisation->executable = std::move(compiled.executable);
    specialisation->sizes = std::move(compiled.sizes);
    specialisation->outcome = Outcome::compiled;
  } catch (const CompileFailure& failure) {
    if (failure.retry_after) throw;
    statistics().not_dynamic.count(failure.what());
    calls_.not_dynamic.count(failure.what());
    const ForkSafeLock guard(mutex_);
    refusals_[ticket.pattern->places] += failure.may_succeed_at_other_sizes ? 1 : max_refusals;
    return false;
  }
  ++statistics().specialisations;
  ++statistics().dynamic;
  publish(std::move(specialisation));
  return true;
}

// Compile for the ticket's signature alone, or for all sizes if a size is too large to unroll.
// Throw CompileFailure if a later retry may succeed.
void CompilationGroup::compile_static(CompileTicket& ticket, const Record& record) {
  auto specialisation = std::make_shared<Specialisation>();
  specialisation->signature = ticket.signature;
  std::function<void()> warn;
  try {
    specialisation->executable =
        compiler().compile({*group_.subgraph, record, group_.parameters, group_.device,
                            bf16_products(ticket.signature)});
    specialisation->outcome = Outcome::compiled;
    ++statistics().specialisations;
  } catch (const CompileFailure& failure) {
    if (failure.retry_after) throw;
    if (failure.unroll_limit_exceeded &&
        plan_pattern_without(*failure.unroll_limit_exceeded, ticket) &&
        compile_dynamic(ticket, record))
      return;
    note_failure(*specialisation, failure);
    if (!failure.excluded_nodes.empty()) specialisation->division = divide(failure.excluded_nodes);
    if (specialisation->division)
      specialisation->outcome = Outcome::split,
      specialisation->excluded_nodes = failure.excluded_nodes;
    if (!strict())
      warn = [warn = failure.warn, split = bool(specialisation->division)] { warn(split); };
  }
  publish(std::move(specialisation));
  if (warn) warn();
}

// Return the division that leaves out these nodes. Specialisations that leave out the same nodes
// share it.
Subgraph::Division CompilationGroup::divide(const std::vector<size_t>& excluded_nodes) {
  const auto find_division = [&] {
    const ForkSafeLock guard(mutex_);
    const auto match = divisions_.find(excluded_nodes);
    return match == divisions_.end() ? std::nullopt : std::optional(match->second);
  };
  if (auto division = find_division()) return *division;
  // The lock is not held here, because `divide` may wait for the GIL.
  auto division = group_.subgraph->divide(excluded_nodes, group_.parameters);
  const ForkSafeLock guard(mutex_);
  return divisions_.emplace(excluded_nodes, std::move(division)).first->second;
}

void CompilationGroup::note_failure(Specialisation& specialisation, const CompileFailure& failure) {
  specialisation.failure = failure.what();
  specialisation.raise = failure.raise;
  for (auto* counts : {&statistics().fallbacks, &calls_.fallbacks})
    specialisation.failure_counters.push_back(&counts->counter(specialisation.failure));
}

// Remember a failure until it may be retried.
void CompilationGroup::retry_later(const Signature& signature, const CompileFailure& failure) {
  auto failed = std::make_shared<Specialisation>();
  failed->signature = signature;
  note_failure(*failed, failure);
  {
    const ForkSafeLock guard(mutex_);
    retries_.push_back({failed, std::chrono::steady_clock::now() + *failure.retry_after});
  }
  if (!strict()) failure.warn(/*divided=*/false);
}

Specialisations::Entry CompilationGroup::find_retry_later(const Signature& signature) {
  const auto now = std::chrono::steady_clock::now();
  const ForkSafeLock guard(mutex_);
  std::erase_if(retries_, [&](const RetryLater& entry) { return entry.until <= now; });
  const auto match = std::find_if(retries_.begin(), retries_.end(), [&](const RetryLater& entry) {
    return entry.failed->signature == signature;
  });
  return match == retries_.end() ? nullptr : match->failed;
}

void CompilationGroup::publish(std::shared_ptr<Specialisation> specialisation) {
  ++memory_use().allocation_epoch;
  specialisation->use.update();
  {
    const ForkSafeLock guard(mutex_);
    if (const auto evicted_at = ghost_list_.time_of_eviction(*specialisation)) {
      specialisation->use.lose(*evicted_at);
      specialisation->use.restore(keep_time());
    }
    specialisations_.store(std::make_shared<const Specialisations>(
        specialisations_.load()->with(std::move(specialisation))));
  }
  enforce_memory_limit();
}

std::vector<Specialisations::Entry> CompilationGroup::compiled() const {
  const auto specialisations = specialisations_.load();
  std::vector<Specialisations::Entry> result;
  for (const auto* entries : {&specialisations->fixed(), &specialisations->dynamic()})
    std::ranges::copy_if(*entries, std::back_inserter(result),
                         [](const auto& entry) { return entry->executable != nullptr; });
  return result;
}

bool CompilationGroup::evict(const Specialisations::Entry& entry) {
  std::shared_ptr<const Specialisations> previous; // destroyed after the lock is released
  const ForkSafeLock guard(mutex_);
  previous = specialisations_.load();
  auto remaining = previous->without(entry);
  if (remaining.size() == previous->size()) return false;
  ghost_list_.add(*entry);
  specialisations_.store(std::make_shared<const Specialisations>(std::move(remaining)));
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
  if (group_.is_asynchronous) wait_for(torch::jit::last(stack, group_.inputs.num_inputs()));
  group_.subgraph->run(stack);
}

void CompilationGroup::keep_inputs(c10::ArrayRef<c10::IValue> inputs) {
  std::vector<c10::IValue> retained(inputs.begin(), inputs.end());
  const ForkSafeLock guard(mutex_);
  last_inputs_.swap(retained);
}

GroupReport CompilationGroup::report() const {
  GroupReport result{number_,
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
  const auto specialisations = specialisations_.load();
  for (const auto* entries : {&specialisations->fixed(), &specialisations->dynamic()})
    for (const auto& entry : *entries) {
      result.specialisations.push_back(
          {entry->executable, entry->failure, entry->signature, entry->pattern,
           entry->outcome == Outcome::split ? std::optional(entry->excluded_nodes) : std::nullopt});
      for (const auto* compared : entry->speed.all())
        result.specialisations.back().speed.emplace_back(compared->key, compared->finding);
    }
  const ForkSafeLock guard(mutex_);
  result.inputs = last_inputs_;
  return result;
}

GroupCounts CompilationGroup::counts() const {
  const int64_t calls = calls_.compiled.total() + calls_.recorded + calls_.fallbacks.total();
  return {number_, calls, calls_.training, static_cast<int64_t>(specialisations_.load()->size())};
}

} // namespace torchmdla
