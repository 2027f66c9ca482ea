#include "device_table.h"

#include "base/forks.h"
#include "in_place.h"

#include <torch/csrc/jit/ir/constants.h>

#include <mutex>

namespace torchmdla {

using torch::jit::Node;
using torch::jit::Value;

namespace {

std::mutex table_mutex;
std::unordered_map<std::string, std::shared_ptr<const DeviceTable>>
    tables;                                      // guarded by table_mutex
std::shared_ptr<const DeviceTable> table_in_use; // guarded by table_mutex

} // namespace

bool DeviceTable::supports_type(const Value* value) const {
  const auto type = value->type()->cast<c10::TensorType>();
  return !type || !type->scalarType() || supports(*type->scalarType());
}

const OpRule* DeviceTable::find(const Node* node) const {
  const auto* schema = node->maybeSchema();
  if (!schema) return nullptr;
  auto entry = ops.find(schema->operator_name());
  if (entry == ops.end() && is_in_place(node))
    entry = ops.find({functional_kind(node->kind())->toQualString(), schema->overload_name()});
  return entry == ops.end() ? nullptr : &entry->second;
}

const OpRule* DeviceTable::rule(const Node* node) const {
  const auto* entry = find(node);
  if (!entry) return nullptr;
  for (const auto* value : node->inputs())
    if (!supports_type(value)) return nullptr;
  for (const auto* value : node->outputs())
    if (!supports_type(value)) return nullptr;
  return entry;
}

Conditions DeviceTable::conditions(const Node* node, const OpRule& rule) const {
  auto result = Conditions::met;
  for (const auto& [argument, expected] : rule.where) {
    const auto index = node->schema().argumentIndexWithName(argument);
    if (!index) return Conditions::violated;
    const auto* value = node->input(*index);
    const auto constant = torch::jit::toIValue(value);
    // Only a boolean may differ between calls. Other conditions (no running mean) are not expected
    // to become true.
    if (!constant && value->type()->kind() != c10::TypeKind::BoolType) return Conditions::violated;
    const bool is_violated = constant && !constant->equals(expected).toBool();
    if (is_violated && argument != "train" && argument != "training") return Conditions::violated;
    if (is_violated)
      result = Conditions::training;
    else if (!constant && result == Conditions::met)
      result = Conditions::open;
  }
  return result;
}

std::shared_ptr<const DeviceTable> current_device_table() {
  const ForkSafeLock guard(table_mutex);
  return table_in_use;
}

std::shared_ptr<const DeviceTable> device_table(const std::string& device) {
  const ForkSafeLock guard(table_mutex);
  const auto entry = tables.find(device);
  return entry == tables.end() ? nullptr : entry->second;
}

void add_device_table(std::shared_ptr<const DeviceTable> table) {
  const ForkSafeLock guard(table_mutex);
  tables[table->device] = std::move(table);
}

void use_device_table(const std::string& device) {
  const ForkSafeLock guard(table_mutex);
  table_in_use = device.empty() ? nullptr : tables.at(device);
}

} // namespace torchmdla
