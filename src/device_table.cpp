#include "device_table.h"

#include <torch/csrc/jit/ir/constants.h>

#include <mutex>

namespace torchmdla {

using torch::jit::Node;
using torch::jit::Value;

namespace {

bool has_constant(const Node* node, const std::string& argument, const c10::IValue& wanted) {
  const auto index = node->schema().argumentIndexWithName(argument);
  if (!index) return false;
  const auto value = torch::jit::toIValue(node->input(*index));
  return value && value->equals(wanted).toBool();
}

std::mutex table_mutex;
std::shared_ptr<const DeviceTable> table_in_use; // guarded by table_mutex

} // namespace

bool DeviceTable::takes_type(const Value* value) const {
  const auto type = value->type()->cast<c10::TensorType>();
  return !type || !type->scalarType() || takes(*type->scalarType());
}

const OpRule* DeviceTable::rule(const Node* node) const {
  const auto* schema = node->maybeSchema();
  if (!schema) return nullptr;
  const auto found = ops.find(schema->operator_name());
  if (found == ops.end()) return nullptr;
  for (const auto& [argument, wanted] : found->second.where)
    if (!has_constant(node, argument, wanted)) return nullptr;
  for (const auto* value : node->inputs())
    if (!takes_type(value)) return nullptr;
  for (const auto* value : node->outputs())
    if (!takes_type(value)) return nullptr;
  return &found->second;
}

std::shared_ptr<const DeviceTable> current_device_table() {
  std::lock_guard<std::mutex> guard(table_mutex);
  return table_in_use;
}

void set_device_table(std::shared_ptr<const DeviceTable> table) {
  std::lock_guard<std::mutex> guard(table_mutex);
  table_in_use = std::move(table);
}

} // namespace torchmdla
