#include "graph_values.h"

#include <torch/csrc/jit/ir/constants.h>

#include <algorithm>
#include <atomic>
#include <initializer_list>
#include <iterator>
#include <vector>

namespace torchmdla {

using torch::jit::Block;
using torch::jit::Node;
using torch::jit::Value;
namespace aten = c10::aten;
namespace prim = c10::prim;

bool is_tensor(const Value* value) {
  return value->type()->isSubtypeOf(*c10::TensorType::get());
}

bool is_tensor_list(const Value* value) {
  return value->type()->isSubtypeOf(*c10::ListType::ofTensors());
}

bool is_constant(const Node* node) {
  return node->kind() == prim::Constant;
}

bool is_plain(const c10::TypePtr& type) {
  switch (type->kind()) {
  case c10::TypeKind::IntType:
  case c10::TypeKind::FloatType:
  case c10::TypeKind::BoolType:
  case c10::TypeKind::NumberType:
  case c10::TypeKind::StringType:
  case c10::TypeKind::NoneType:
  case c10::TypeKind::DeviceObjType:
  case c10::TypeKind::TensorType:
    return true;
  case c10::TypeKind::OptionalType:
    return is_plain(type->expectRef<c10::OptionalType>().getElementType());
  case c10::TypeKind::ListType: {
    const auto& element = type->expectRef<c10::ListType>().getElementType();
    return element->kind() != c10::TypeKind::TensorType && is_plain(element);
  }
  default:
    return false;
  }
}

bool unpacks(const Node* node) {
  return node->kind() == prim::ConstantChunk || node->kind() == prim::ListUnpack;
}

bool is_assertion(const Node* node) {
  if (node->kind() != prim::If || !node->outputs().empty()) return false;
  const auto does_nothing = [](const Node* inner) {
    return is_constant(inner) || (!inner->hasSideEffects() && inner->blocks().empty());
  };
  return std::all_of(node->blocks().begin(), node->blocks().end(), [&](const Block* side) {
    return std::all_of(side->nodes().begin(), side->nodes().end(), [&](const Node* inner) {
      return inner->kind() == prim::RaiseException || does_nothing(inner);
    });
  });
}

bool switches_modes(const Node* node) {
  static const std::unordered_set<c10::Symbol> kinds{
      prim::Enter, prim::Exit, c10::Symbol::fromQualString("aten::set_grad_enabled")};
  return kinds.count(node->kind()) != 0;
}

namespace {

std::atomic<size_t> visited{0};

} // namespace

size_t values_visited() {
  return visited.load(std::memory_order_relaxed);
}

void for_each_input(Node* node, const std::function<void(Value*)>& visit) {
  const auto visit_all = [&](c10::ArrayRef<Value*> values) {
    visited.fetch_add(values.size(), std::memory_order_relaxed);
    std::for_each(values.begin(), values.end(), visit);
  };
  visit_all(node->inputs());
  for (auto* block : node->blocks()) {
    for (auto* inner : block->nodes())
      for_each_input(inner, visit);
    visit_all(block->outputs());
  }
}

Node* node_in_block(Node* node, const Block* block) {
  while (node && node->owningBlock() != block)
    node = node->owningBlock()->owningNode();
  return node;
}

namespace {

bool always_raises(const Block* block) {
  return std::any_of(block->nodes().begin(), block->nodes().end(), [](const Node* node) {
    if (node->kind() == prim::RaiseException) return true;
    const auto sides = node->blocks();
    return node->kind() == prim::If && std::all_of(sides.begin(), sides.end(), always_raises);
  });
}

void collect_uninitialised(const Block* block, ValueSet& values);

void collect_of_branch(const Node* node, ValueSet& values) {
  for (const auto* side : node->blocks()) {
    collect_uninitialised(side, values);
    if (always_raises(side)) continue;
    for (size_t i = 0; i < node->outputs().size(); ++i)
      if (values.count(side->outputs()[i])) values.insert(node->outputs()[i]);
  }
}

// Collect the uninitialised values that a loop carries. A carried value is initialised in all
// iterations, or may be uninitialised in any.
void collect_of_loop(const Node* node, ValueSet& values) {
  const auto* body = node->blocks()[0];
  size_t known = 0;
  do {
    known = values.size();
    for (size_t i = 0; i < node->outputs().size(); ++i) {
      if (!values.count(node->inputs()[i + 2]) && !values.count(body->outputs()[i + 1])) continue;
      values.insert(body->inputs()[i + 1]);
      values.insert(node->outputs()[i]);
    }
    collect_uninitialised(body, values);
  } while (values.size() != known);
}

void collect_uninitialised(const Block* block, ValueSet& values) {
  for (const auto* node : block->nodes()) {
    if (node->kind() == prim::Uninitialized)
      values.insert(node->output());
    else if (node->kind() == prim::If)
      collect_of_branch(node, values);
    else if (node->kind() == prim::Loop)
      collect_of_loop(node, values);
  }
}

} // namespace

ValueSet uninitialised_values(const Block* block) {
  ValueSet values;
  collect_uninitialised(block, values);
  return values;
}

namespace {

void collect_changing(const Block* block, ValueSet& values) {
  const auto add = [&](c10::ArrayRef<const Value*> changing) {
    std::copy_if(changing.begin(), changing.end(), std::inserter(values, values.end()),
                 [](const Value* value) { return !is_tensor(value); });
  };
  for (const auto* node : block->nodes()) {
    if (std::any_of(node->inputs().begin(), node->inputs().end(),
                    [&](const Value* input) { return values.count(input) != 0; }))
      add(node->outputs());
    if (node->kind() == prim::Loop) add(node->blocks()[0]->inputs());
    for (const auto* inner : node->blocks())
      collect_changing(inner, values);
  }
}

} // namespace

ValueSet changing_values(const Block* block) {
  ValueSet values;
  collect_changing(block, values);
  return values;
}

namespace {

bool is_constant_number(const Value* value) {
  const auto constant = torch::jit::toIValue(value);
  return constant && (!constant->isTensor() || constant->toTensor().dim() == 0);
}

// Return whether the tracer emits operators of this kind as 0-d shape arithmetic. Any other
// operator on such tensors computes data.
bool is_shape_arithmetic(c10::Symbol kind) {
  static const std::unordered_set<c10::Symbol> kinds{
      aten::add, aten::sub,  aten::mul,   aten::div,  aten::floor_divide, aten::remainder,
      aten::neg, aten::rsub, aten::floor, aten::ceil, aten::to,
  };
  return kinds.count(kind) != 0;
}

} // namespace

namespace {

std::unordered_set<c10::Symbol> symbols_of(std::initializer_list<const char*> names) {
  std::unordered_set<c10::Symbol> result;
  for (const auto* name : names)
    result.insert(c10::Symbol::fromQualString(name));
  return result;
}

// Return whether the graph shows that `value` is a tensor of booleans.
bool is_mask(const Value* value) {
  static const auto comparisons = symbols_of(
      {"aten::eq", "aten::ne", "aten::lt", "aten::le", "aten::gt", "aten::ge", "aten::isnan",
       "aten::isinf", "aten::isfinite", "aten::isin", "aten::logical_and", "aten::logical_or",
       "aten::logical_xor", "aten::logical_not", "aten::any", "aten::all"});
  static const auto bitwise_ops = symbols_of(
      {"aten::bitwise_and", "aten::bitwise_or", "aten::bitwise_xor", "aten::bitwise_not"});
  if (const auto type = value->type()->cast<c10::TensorType>())
    if (const auto dtype = type->scalarType()) return *dtype == at::kBool;
  const auto* node = value->node();
  if (node->hasAttribute(c10::attr::Subgraph)) // result of a group
    return is_mask(node->g(c10::attr::Subgraph)->outputs().at(value->offset()));
  return comparisons.count(node->kind()) != 0 ||
         (bitwise_ops.count(node->kind()) != 0 && is_mask(node->input(0)));
}

} // namespace

bool indexes_by_mask(const Node* node) {
  if (node->kind() != aten::index) return false;
  const auto* indices = node->input(1)->node();
  return indices->kind() == prim::ListConstruct &&
         std::any_of(indices->inputs().begin(), indices->inputs().end(), is_mask);
}

bool has_data_dependent_length(const Value* value, const ValueSet& known) {
  static const auto data_dependent =
      symbols_of({"aten::nonzero", "aten::nonzero_numpy", "aten::argwhere", "aten::masked_select",
                  "aten::_unique", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive",
                  "aten::unique_dim_consecutive", "aten::repeat_interleave", "torchvision::nms"});
  // The limit avoids a walk over a long graph for each of its groups.
  constexpr size_t most_values = 16;
  std::vector<const Value*> worklist{value};
  for (size_t k = 0; k < worklist.size() && k < most_values; ++k) {
    if (known.count(worklist[k])) return true;
    const auto* node = worklist[k]->node();
    if (!is_tensor(worklist[k]) || node->hasAttribute(c10::attr::Subgraph)) continue;
    if (data_dependent.count(node->kind()) || indexes_by_mask(node)) return true;
    worklist.insert(worklist.end(), node->inputs().begin(), node->inputs().end());
  }
  return false;
}

bool follow_shape_tensors(const Node* node, ValueSet& known) {
  if (node->kind() == prim::NumToTensor) {
    known.insert(node->output());
    return true;
  }
  if (!is_shape_arithmetic(node->kind()) || node->outputs().size() != 1) return false;
  bool any = false;
  for (const auto* input : node->inputs()) {
    if (!is_tensor(input)) continue;
    if (known.count(input))
      any = true;
    else if (!is_constant_number(input))
      return false;
  }
  if (any) known.insert(node->output());
  return any;
}

} // namespace torchmdla
