#include "waits.h"

#include "fusion_pass.h"

#include <algorithm>
#include <string>
#include <vector>

namespace torchmdla {

using torch::jit::Block;
using torch::jit::Node;
using torch::jit::Value;

namespace {

// Groups of an asynchronous device.
struct Groups {
  const c10::Symbol kind;
  const std::string device;

  // Return whether a node is one of them, and passes its inputs to the device as they are. A group
  // with flags forms groups of its own in each call.
  bool includes(const Node* node) const {
    return node->kind() == kind && node->s(device_attribute()) == device &&
           !node->hasAttribute(flags_attribute());
  }
};

// Return the node of `block` that contains `node`.
Node* ancestor_in(Block* block, Node* node) {
  while (node->owningBlock() != block)
    node = node->owningBlock()->owningNode();
  return node;
}

void insert_wait(Value* value, const Groups& groups) {
  std::vector<torch::jit::Use> reads;
  std::ranges::copy_if(value->uses(), std::back_inserter(reads),
                       [&](const auto& use) { return !groups.includes(use.user); });
  if (reads.empty()) return;
  auto* block = value->node()->owningBlock();
  auto* first = ancestor_in(block, reads.front().user);
  for (const auto& read : reads)
    if (auto* node = ancestor_in(block, read.user); node->isBefore(first)) first = node;
  auto* wait = block->owningGraph()->create(wait_symbol(), {value});
  wait->output()->setType(value->type());
  wait->setSourceRange(value->node()->sourceRange());
  wait->insertBefore(first);
  for (const auto& read : reads)
    read.user->replaceInput(read.offset, wait->output());
}

bool may_be_pending(const Node* node, const Groups& groups) {
  return groups.includes(node) && std::ranges::all_of(node->outputs(), [](const Value* output) {
           const auto kind = output->type()->kind();
           return kind == c10::TypeKind::TensorType || kind == c10::TypeKind::IntType;
         });
}

void insert_waits(Block* block, const Groups& groups) {
  for (auto* node : block->nodes()) {
    for (auto* inner : node->blocks())
      insert_waits(inner, groups);
    if (!may_be_pending(node, groups)) continue;
    node->i_(pending_attribute(), 1);
    for (auto* output : node->outputs())
      if (output->type()->kind() == c10::TypeKind::TensorType) insert_wait(output, groups);
  }
}

} // namespace

c10::Symbol pending_attribute() {
  static const auto symbol = c10::Symbol::attr("pending");
  return symbol;
}

c10::Symbol wait_symbol() {
  static const auto symbol = c10::Symbol::fromQualString("mdla::wait");
  return symbol;
}

void insert_waits(Block* block, c10::Symbol group_kind, const std::string& device) {
  insert_waits(block, Groups{group_kind, device});
}

} // namespace torchmdla
