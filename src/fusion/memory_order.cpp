#include "memory_order.h"

#include "graph_values.h"

#include <algorithm>

namespace torchmdla {

using torch::jit::AliasDb;
using torch::jit::Block;
using torch::jit::Node;
using torch::jit::Value;
namespace prim = c10::prim;

namespace {

// PyTorch calls ops random by their schema (dropout, LSTM, attention). They are not with the
// arguments that a device asks for.
bool draws_random_numbers(const Node* node, const DeviceTable& table) {
  if (!node->isNondeterministic()) return false;
  const auto* rule = table.rule(node);
  return !rule || table.conditions(node, *rule) != Conditions::met;
}

// Effects whose order shows whatever memory they touch.
bool has_visible_effects(const Node* node, const DeviceTable& table) {
  if (node->hasSideEffects() || draws_random_numbers(node, table)) return true;
  return std::any_of(node->blocks().begin(), node->blocks().end(), [&](const Block* block) {
    return std::any_of(block->nodes().begin(), block->nodes().end(),
                       [&](const Node* inner) { return has_visible_effects(inner, table); });
  });
}

// `AliasDb::isMutable` does not look into blocks.
bool writes(const AliasDb& aliases, Node* node) {
  if (aliases.isMutable(node)) return true;
  return std::any_of(node->blocks().begin(), node->blocks().end(), [&](Block* block) {
    return std::any_of(block->nodes().begin(), block->nodes().end(),
                       [&](Node* inner) { return writes(aliases, inner); });
  });
}

bool makes_container(const Node* node) {
  return node->kind() == prim::ListConstruct || node->kind() == prim::TupleConstruct;
}

// A value and what it is made of: the alias analysis takes a list with one reader to hold nothing.
void add_held(Value* value, torch::jit::ValueSet& values) {
  values.insert(value);
  if (!makes_container(value->node())) return;
  for (auto* element : value->node()->inputs())
    add_held(element, values);
}

// An attribute is read from its object, and a list or tuple made of what it is to hold, before that
// is written: no matter.
bool touches(const AliasDb& aliases, Node* writer, Node* node) {
  if (makes_container(node) && node->isBefore(writer)) return false;
  torch::jit::ValueSet values;
  for_each_input(node, [&](Value* value) { add_held(value, values); });
  if (node->kind() != prim::GetAttr) values.insert(node->outputs().begin(), node->outputs().end());
  return aliases.writesToAlias(writer, values);
}

} // namespace

MemoryOrder::MemoryOrder(Block* block, const DeviceTable& table, const AliasDb& aliases) {
  std::vector<Node*> writers;
  Node* previous = nullptr;
  for (auto* node : block->nodes()) {
    if (writes(aliases, node)) {
      effects_.insert(node);
      writers.push_back(node);
    }
    if (!has_visible_effects(node, table)) continue;
    effects_.insert(node);
    if (previous) before_[node].push_back(previous);
    previous = node;
  }
  for (auto* writer : writers)
    for (auto* node : block->nodes()) {
      if (node == writer || is_constant(node) || !touches(aliases, writer, node)) continue;
      if (node->isBefore(writer))
        before_[writer].push_back(node);
      else
        before_[node].push_back(writer);
    }
}

const std::vector<Node*>& MemoryOrder::before(const Node* node) const {
  static const std::vector<Node*> none;
  const auto found = before_.find(node);
  return found == before_.end() ? none : found->second;
}

} // namespace torchmdla
