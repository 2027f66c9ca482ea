// Which nodes of a block must keep their order although no value joins them.
#pragma once

#include "device_table.h"

#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/ir/ir.h>

#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace torchmdla {

class MemoryOrder {
public:
  MemoryOrder(torch::jit::Block* block, const DeviceTable& table,
              const torch::jit::AliasDb& aliases);

  // Nodes that keep their order among themselves: writers, side effects, random numbers, control
  // flow. They never join a group.
  bool is_ordered(const torch::jit::Node* node) const { return ordered_.count(node) != 0; }

  // Nodes that must stay before `node` because one writes what the other reads or writes.
  const std::vector<torch::jit::Node*>& before(const torch::jit::Node* node) const;

private:
  std::unordered_set<const torch::jit::Node*> ordered_;
  std::unordered_map<const torch::jit::Node*, std::vector<torch::jit::Node*>> before_;
};

} // namespace torchmdla
