// Order of the nodes of a block that must be kept although no value connects them.
#pragma once

#include "aliases.h"
#include "device_table.h"

#include <torch/csrc/jit/ir/ir.h>

#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace torchmdla {

class MemoryOrder {
public:
  MemoryOrder(torch::jit::Block* block, const DeviceTable& table, const Aliases& aliases);

  // Return whether `node`, including its blocks, writes memory, draws random numbers or has side
  // effects. With open conditions, it returns whether the node may do so.
  bool has_effects(const torch::jit::Node* node) const { return effects_.count(node) != 0; }

  // Return the nodes that must stay before `node`. Either one writes memory that the other
  // accesses, or both have effects whose order is visible (random numbers, output), or one switches
  // modes.
  const std::vector<torch::jit::Node*>& before(const torch::jit::Node* node) const;

  // Return the number of the section of the block that contains `node`. Nodes of one section run in
  // the same modes.
  size_t mode(const torch::jit::Node* node) const;

private:
  std::unordered_set<const torch::jit::Node*> effects_;
  std::unordered_map<const torch::jit::Node*, std::vector<torch::jit::Node*>> before_;
  std::unordered_map<const torch::jit::Node*, size_t> modes_; // without entry: 0
};

} // namespace torchmdla
