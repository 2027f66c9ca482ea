#include "operators.h"

#include "base/forks.h"
#include "base/never_destroyed.h"
#include "views.h"

#include <algorithm>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

namespace torchmdla::acap {

using c10::OperatorHandle;
using c10::OperatorName;

namespace {

bool is_tensors(const c10::TypePtr& type) {
  return type->kind() == c10::TypeKind::TensorType ||
         type->isSubtypeOf(*c10::ListType::ofTensors());
}

bool writes(const c10::Argument& argument) {
  return argument.alias_info() && argument.alias_info()->isWrite();
}

// Return whether a node may have these results: tensors, or one list of tensors.
bool has_recordable_results(const c10::FunctionSchema& schema) {
  const auto& returns = schema.returns();
  if (returns.size() == 1) return is_tensors(returns[0].type());
  return !returns.empty() && std::all_of(returns.begin(), returns.end(), [](const auto& returned) {
    return returned.type()->kind() == c10::TypeKind::TensorType;
  });
}

// Return all defined overloads by base name.
const std::unordered_map<std::string, std::vector<OperatorName>>& overloads() {
  static const auto table = [] {
    std::unordered_map<std::string, std::vector<OperatorName>> overloads_by_name;
    for (const auto& name : c10::Dispatcher::singleton().getAllOpNames())
      overloads_by_name[name.name].push_back(name);
    return overloads_by_name;
  }();
  return table;
}

// Return the in-place ops whose functional twin is not the one that the naming rule gives.
const std::unordered_map<OperatorName, OperatorName>& named_twins() {
  static const std::unordered_map<OperatorName, OperatorName> table{
      {{"aten::_native_batch_norm_legit", ""}, {"aten::_native_batch_norm_legit_functional", ""}},
  };
  return table;
}

bool same_inputs(const c10::FunctionSchema& mutating, const std::vector<size_t>& outs,
                 const c10::FunctionSchema& functional) {
  const auto& wanted = functional.arguments();
  size_t next = 0;
  for (size_t i = 0; i < mutating.arguments().size(); ++i) {
    if (std::find(outs.begin(), outs.end(), i) != outs.end()) continue;
    const auto& argument = mutating.arguments()[i];
    if (next == wanted.size() || argument.name() != wanted[next].name() ||
        *argument.type() != *wanted[next].type())
      return false;
    ++next;
  }
  return next == wanted.size();
}

bool is_functional(const c10::FunctionSchema& schema) {
  const auto is_free = [](const c10::Argument& argument) { return !argument.alias_info(); };
  return std::all_of(schema.arguments().begin(), schema.arguments().end(), is_free) &&
         std::all_of(schema.returns().begin(), schema.returns().end(), is_free) &&
         has_recordable_results(schema);
}

std::vector<OperatorName> candidates(const OperatorHandle& op) {
  const auto& [name, overload] = op.operator_name();
  if (const auto entry = named_twins().find(op.operator_name()); entry != named_twins().end())
    return {entry->second};
  const auto base = name.ends_with("_") ? name.substr(0, name.size() - 1) : name;
  const auto entry = overloads().find(base);
  return entry == overloads().end() ? std::vector<OperatorName>() : entry->second;
}

OperatorTraits traits_of_mutating(const OperatorHandle& op) {
  OperatorTraits traits{OperatorKind::other, {}, {}, {}, 0};
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!writes(arguments[i])) continue;
    if (arguments[i].type()->kind() != c10::TypeKind::TensorType) return traits;
    traits.written.push_back(i);
    if (arguments[i].is_out()) traits.outs.push_back(i);
  }
  if (!traits.outs.empty() && traits.outs != traits.written) return traits;
  for (const auto& name : candidates(op)) {
    const auto twin = c10::Dispatcher::singleton().findSchema(name);
    if (!twin || !is_functional(twin->schema()) ||
        !same_inputs(op.schema(), traits.outs, twin->schema()))
      continue;
    const auto results = twin->schema().returns().size();
    if (results < traits.written.size()) continue;
    traits.fresh_results = results - traits.written.size();
    traits.functional = twin;
    traits.kind = OperatorKind::mutating;
    return traits;
  }
  return traits;
}

OperatorTraits make_traits(const OperatorHandle& op) {
  const auto& schema = op.schema();
  if (is_recordable_view(op)) return {OperatorKind::view, {}, {}, {}, 0};
  if (is_random(op)) return {OperatorKind::other, {}, {}, {}, 0};
  if (std::any_of(schema.arguments().begin(), schema.arguments().end(), writes))
    return traits_of_mutating(op);
  return {is_functional(schema) ? OperatorKind::functional : OperatorKind::other, {}, {}, {}, 0};
}

} // namespace

const OperatorTraits& traits_of(const OperatorHandle& op) {
  static std::shared_mutex mutex;
  static NeverDestroyed<std::unordered_map<OperatorName, OperatorTraits>> known;
  {
    const ForkGuard section;
    const std::shared_lock<std::shared_mutex> guard(mutex);
    if (const auto entry = known->find(op.operator_name()); entry != known->end())
      return entry->second;
  }
  auto traits = make_traits(op);
  const ForkGuard section;
  const std::unique_lock<std::shared_mutex> guard(mutex);
  return known->emplace(op.operator_name(), std::move(traits)).first->second;
}

std::optional<OperatorHandle> scalar_twin(const OperatorHandle& op, size_t argument) {
  const auto& [name, overload] = op.operator_name();
  const auto* scalar = overload == "Tensor_mode" ? "Scalar_mode" : "Scalar";
  const auto twin = c10::Dispatcher::singleton().findSchema({name, scalar});
  if (!twin) return std::nullopt;
  const auto &parameters = op.schema().arguments(), &twin_parameters = twin->schema().arguments();
  if (parameters.size() != twin_parameters.size()) return std::nullopt;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].name() != twin_parameters[i].name()) return std::nullopt;
    const bool is_number = twin_parameters[i].type()->kind() == c10::TypeKind::NumberType;
    if (i == argument ? !is_number : *parameters[i].type() != *twin_parameters[i].type())
      return std::nullopt;
  }
  return twin;
}

OperatorHandle for_any_strides(const OperatorHandle& op) {
  static const OperatorName view{"aten::view", ""};
  static const auto reshape = c10::Dispatcher::singleton().findSchemaOrThrow("aten::reshape", "");
  return op.operator_name() == view ? reshape : op;
}

bool is_random(const OperatorHandle& op) {
  return op.hasTag(at::Tag::nondeterministic_seeded);
}

} // namespace torchmdla::acap
