#include "memory_order.h"

#include "graph_values.h"

namespace torchmdla {

using torch::jit::AliasDb;
using torch::jit::Block;
using torch::jit::Node;

namespace {

bool touches(const AliasDb& aliases, Node* writer, Node* node) {
  torch::jit::ValueSet values;
  values.insert(node->inputs().begin(), node->inputs().end());
  values.insert(node->outputs().begin(), node->outputs().end());
  return aliases.writesToAlias(writer, values);
}

// A device takes no op that draws random numbers: what PyTorch calls nondeterministic by its schema
// (dropout, LSTM, attention) is not with the arguments that the table asks for.
bool draws_random_numbers(const Node* node, const DeviceTable& table) {
  return node->isNondeterministic() && !table.rule(node);
}

} // namespace

MemoryOrder::MemoryOrder(Block* block, const DeviceTable& table, const AliasDb& aliases) {
  std::vector<Node*> writers;
  Node* previous = nullptr;
  for (auto* node : block->nodes()) {
    const bool writes = aliases.isMutable(node);
    if (!writes && !node->hasSideEffects() && !draws_random_numbers(node, table) &&
        node->blocks().empty())
      continue;
    ordered_.insert(node);
    if (previous) before_[node].push_back(previous);
    previous = node;
    if (writes) writers.push_back(node);
  }
  for (auto* writer : writers)
    for (auto* node : block->nodes()) {
      if (is_ordered(node) || is_constant(node) || !touches(aliases, writer, node)) continue;
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
