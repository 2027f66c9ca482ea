#include "memory_order.h"

#include "graph_values.h"

#include <algorithm>
#include <utility>

namespace torchmdla {

using torch::jit::AliasDb;
using torch::jit::Block;
using torch::jit::Node;
using torch::jit::Value;
namespace prim = c10::prim;

namespace {

// Return whether `node` draws random numbers. PyTorch classifies ops as random by their schema
// (dropout, LSTM, attention). They are not random with the arguments that a device requires.
bool draws_random_numbers(const Node* node, const DeviceTable& table) {
  if (!node->isNondeterministic()) return false;
  const auto* rule = table.rule(node);
  return !rule || table.conditions(node, *rule) != Conditions::met;
}

// Return whether `node` has effects whose order is visible regardless of the memory that it
// touches.
bool has_visible_effects(const Node* node, const DeviceTable& table) {
  if (node->hasSideEffects() || draws_random_numbers(node, table)) return true;
  return std::any_of(node->blocks().begin(), node->blocks().end(), [&](const Block* block) {
    return std::any_of(block->nodes().begin(), block->nodes().end(),
                       [&](const Node* inner) { return has_visible_effects(inner, table); });
  });
}

// Access to private members of the alias analysis. Its public interface only reports whether one
// node writes memory that some values share. Calling that for each node and each writer takes time
// quadratic in the program's length. An explicit instantiation may name private members
// ([temp.spec.general]).
template <class Name, auto member> struct Private {
  friend constexpr auto private_member(Name) { return member; }
};
struct WritesOfNodes {
  friend constexpr auto private_member(WritesOfNodes);
};
struct LocationsOfValues {
  friend constexpr auto private_member(LocationsOfValues);
};
template struct Private<WritesOfNodes, &AliasDb::writeIndex_>;
template struct Private<LocationsOfValues,
                        &torch::jit::ValueAndMemoryLocationSet::memoryLocations_>;

bool makes_container(const Node* node) {
  return node->kind() == prim::ListConstruct || node->kind() == prim::TupleConstruct;
}

// Memory that nodes write and touch, themselves or in their blocks.
class Memory {
public:
  explicit Memory(const Aliases& aliases)
      : aliases_(aliases), joined_(locations_of(aliases.joined())) {}

  MemoryLocations written_locations(Node* node) const {
    MemoryLocations written;
    add_written(node, written);
    return with_joined(std::move(written));
  }

  // Return the memory that `node` touches, as far as some node writes it. A `prim::GetAttr` touches
  // only its object.
  MemoryLocations touched_locations(Node* node) const {
    auto values = aliases_.declared().getValueAndMemoryLocationSet();
    for_each_input(node, [&](Value* value) { add_with_elements(value, values); });
    if (node->kind() != prim::GetAttr)
      for (auto* output : node->outputs())
        add(output, values);
    return with_joined(values.*private_member(LocationsOfValues{}));
  }

private:
  using Values = torch::jit::ValueAndMemoryLocationSet;

  MemoryLocations locations_of(const torch::jit::ValueSet& shared) const {
    auto values = aliases_.declared().getValueAndMemoryLocationSet();
    for (const auto* value : shared)
      values.insert(const_cast<Value*>(value));
    return values.*private_member(LocationsOfValues{});
  }

  // Add the joined memory if it overlaps: all joined values count as one memory.
  MemoryLocations with_joined(MemoryLocations locations) const {
    if (locations.intersects(joined_)) locations |= joined_;
    return locations;
  }

  void add_written(Node* node, MemoryLocations& written) const {
    const auto& writes = *(aliases_.declared().*private_member(WritesOfNodes{}));
    const auto entry = writes.find(node);
    if (entry != writes.end()) written |= entry->second;
    for (auto* block : node->blocks())
      for (auto* inner : block->nodes())
        add_written(inner, written);
  }

  void add(Value* value, Values& values) const {
    if (aliases_.has_writers(value)) values.insert(value);
  }

  // Add a value and its elements. The alias analysis assumes that a list with one reader holds
  // nothing.
  void add_with_elements(Value* value, Values& values) const {
    add(value, values);
    if (!makes_container(value->node())) return;
    for (auto* element : value->node()->inputs())
      add_with_elements(element, values);
  }

  const Aliases& aliases_;
  const MemoryLocations joined_;
};

// Last users of one memory location, on a walk along a block.
struct LastUses {
  Node* writer = nullptr;
  std::vector<Node*> readers; // readers since the last write
};

} // namespace

// Each node waits for the last users of its memory. These have waited for all earlier ones.
MemoryOrder::MemoryOrder(Block* block, const DeviceTable& table, const Aliases& aliases) {
  const Memory memory(aliases);
  std::unordered_map<unsigned, LastUses> last_uses;
  Node* previous = nullptr;
  std::vector<Node*> since_switch; // the last node that switches modes, and all nodes after it
  size_t switches = 0;
  for (auto* node : block->nodes()) {
    if (is_constant(node)) continue;
    std::unordered_set<Node*> earlier;
    auto written = memory.written_locations(node);
    for (const auto location : memory.touched_locations(node) | written) {
      auto& last = last_uses[location];
      if (last.writer) earlier.insert(last.writer);
      if (written.test(location)) {
        earlier.insert(last.readers.begin(), last.readers.end());
        last = {node, {}};
      } else if (!makes_container(node)) {
        // A list or tuple may be constructed after a write to its elements, so it does not count as
        // a reader.
        last.readers.push_back(node);
      }
    }
    const bool is_visible = has_visible_effects(node, table);
    if (is_visible && previous) earlier.insert(previous);
    if (is_visible) previous = node;
    if (is_visible || !written.empty()) effects_.insert(node);
    if (switches_modes(node)) {
      earlier.insert(since_switch.begin(), since_switch.end());
      since_switch.clear();
      ++switches;
    } else if (switches != 0) {
      earlier.insert(since_switch.front());
    }
    since_switch.push_back(node);
    if (switches != 0) modes_[node] = switches;
    if (!earlier.empty()) before_[node].assign(earlier.begin(), earlier.end());
  }
}

const std::vector<Node*>& MemoryOrder::before(const Node* node) const {
  static const std::vector<Node*> none;
  const auto entry = before_.find(node);
  return entry == before_.end() ? none : entry->second;
}

size_t MemoryOrder::mode(const Node* node) const {
  const auto entry = modes_.find(node);
  return entry == modes_.end() ? 0 : entry->second;
}

} // namespace torchmdla
