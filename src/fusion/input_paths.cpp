#include "input_paths.h"

#include <algorithm>
#include <sstream>

namespace torchmdla {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Stack;
using torch::jit::Value;
namespace attr = c10::attr;
namespace prim = c10::prim;

namespace {

constexpr char separator = '.';

// Chain of attribute reads `names`, starting at the value `from`.
struct AttributePath {
  Value* from;
  std::vector<std::string> names;
};

AttributePath attribute_path_of(Value* value, const MutatedAttributes& mutated) {
  AttributePath attribute_path{value, {}};
  while (attribute_path.from->node()->kind() == prim::GetAttr) {
    auto* node = attribute_path.from->node();
    const auto& name = node->s(attr::name);
    if (mutated.contains(name) || node->input()->type()->kind() != c10::TypeKind::ClassType) break;
    attribute_path.names.insert(attribute_path.names.begin(), name);
    attribute_path.from = node->input();
  }
  return attribute_path;
}

// Inputs for a group's node, and the paths of the subgraph's inputs in them.
struct GroupInputs {
  std::vector<Value*> values;
  std::vector<std::string> paths;

  void add(const AttributePath& attribute_path) {
    auto entry = std::find(values.begin(), values.end(), attribute_path.from);
    const auto index = entry - values.begin();
    if (entry == values.end()) values.push_back(attribute_path.from);
    auto path = std::to_string(index);
    for (const auto& name : attribute_path.names)
      path += separator + name;
    paths.push_back(std::move(path));
  }
};

void read_attributes(Node* group, const MutatedAttributes& mutated) {
  GroupInputs group_inputs;
  bool any = false;
  for (auto* input : group->inputs()) {
    const auto attribute_path = attribute_path_of(input, mutated);
    any |= !attribute_path.names.empty();
    group_inputs.add(attribute_path);
  }
  if (!any) return;
  group->removeAllInputs();
  for (auto* value : group_inputs.values)
    group->addInput(value);
  group->ss_(paths_attribute(), std::move(group_inputs.paths));
}

void read_attributes_in(Block* block, const MutatedAttributes& mutated, c10::Symbol group_kind) {
  for (auto* node : block->nodes()) {
    if (node->kind() == group_kind && !node->hasAttribute(paths_attribute()))
      read_attributes(node, mutated);
    for (auto* inner : node->blocks())
      read_attributes_in(inner, mutated, group_kind);
  }
}

// Prefetch a value that is read soon. Callers prefetch all values before they read any.
void prefetch(const c10::IValue& value) {
  if (!value.isTensor()) return;
  constexpr size_t line = 64;
  const auto* tensor = reinterpret_cast<const char*>(value.unsafeToTensorImpl());
  for (size_t offset = 0; offset < sizeof(c10::TensorImpl); offset += line)
    __builtin_prefetch(tensor + offset);
}

} // namespace

c10::Symbol paths_attribute() {
  static const auto symbol = c10::Symbol::attr("paths");
  return symbol;
}

void read_attributes_in_groups(const std::shared_ptr<Graph>& graph, c10::Symbol group_kind,
                               const MutatedAttributes& mutated) {
  if (!mutated.any) read_attributes_in(graph->block(), mutated, group_kind);
}

InputPaths::InputPaths(size_t num_inputs) : num_values_(num_inputs) {
  for (size_t i = 0; i < num_inputs; ++i)
    inputs_.push_back({node_input, i});
}

InputPaths::InputPaths(const Node* group) : InputPaths(group->inputs().size()) {
  if (!group->hasAttribute(paths_attribute())) return;
  direct_ = false;
  inputs_.clear();
  for (const auto& path : group->ss(paths_attribute())) {
    std::istringstream parts(path);
    std::string part;
    std::getline(parts, part, separator);
    Place place{node_input, std::stoul(part)};
    auto type = group->input(place.slot)->type();
    while (std::getline(parts, part, separator)) {
      const auto& module = type->expectRef<c10::ClassType>();
      place = {module_at(place), module.getAttributeSlot(part)};
      type = module.getAttribute(place.slot);
    }
    inputs_.push_back(place);
  }
}

// Return the index of the module at `place`. Add the module if it is new.
size_t InputPaths::module_at(const Place& place) {
  const auto entry = std::find(modules_.begin(), modules_.end(), place);
  if (entry == modules_.end()) return modules_.push_back(place), modules_.size() - 1;
  return entry - modules_.begin();
}

InputPaths InputPaths::of(const std::vector<size_t>& inputs) const {
  InputPaths result(num_values_);
  result.direct_ = false;
  result.inputs_.clear();
  for (const auto input : inputs)
    result.inputs_.push_back(result.copy_place(inputs_.at(input), *this));
  return result;
}

// Return a place of `from` in these paths. Modules that lead to it are added.
InputPaths::Place InputPaths::copy_place(const Place& place, const InputPaths& from) {
  if (place.module == node_input) return place;
  return {module_at(copy_place(from.modules_[place.module], from)), place.slot};
}

void InputPaths::expand(Stack& stack) const {
  if (direct_) return;
  const auto last = stack.end() - static_cast<std::ptrdiff_t>(num_values_);
  const c10::SmallVector<c10::IValue, 8> values(std::make_move_iterator(last),
                                                std::make_move_iterator(stack.end()));
  stack.erase(last, stack.end());
  append(values, stack);
}

InputPaths::Inputs InputPaths::find(const Stack& stack) const {
  Inputs result;
  append(torch::jit::last(stack, num_values_), result);
  return result;
}

template <class Result>
void InputPaths::append(c10::ArrayRef<c10::IValue> values, Result& result) const {
  c10::SmallVector<const c10::ivalue::Object*, 256> modules;
  const auto at = [&](const Place& place) -> const c10::IValue& {
    return place.module == node_input ? values[place.slot]
                                      : modules[place.module]->getSlot(place.slot);
  };
  for (const auto& place : modules_)
    modules.push_back(&at(place).toObjectRef());
  c10::SmallVector<const c10::IValue*, 512> inputs;
  for (const auto& place : inputs_) {
    inputs.push_back(&at(place));
    prefetch(*inputs.back());
  }
  result.reserve(result.size() + inputs.size());
  for (const auto* input : inputs)
    result.push_back(*input);
}

} // namespace torchmdla
