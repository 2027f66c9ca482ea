// Which nodes of a block must keep their order although no value joins them.
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

  // Whether `node` writes memory, draws random numbers or has side effects, itself or in its
  // blocks. With open conditions this is only what it might do.
  bool has_effects(const torch::jit::Node* node) const { return effects_.count(node) != 0; }

  // Nodes that must stay before `node`: one writes what the other reads or writes, or both have
  // effects whose order shows (random numbers, output), or one switches modes.
  const std::vector<torch::jit::Node*>& before(const torch::jit::Node* node) const;

  // Which stretch of the block `node` stands in: nodes of one stretch run in the same modes.
  size_t mode(const torch::jit::Node* node) const;

private:
  std::unordered_set<const torch::jit::Node*> effects_;
  std::unordered_map<const torch::jit::Node*, std::vector<torch::jit::Node*>> before_;
  std::unordered_map<const torch::jit::Node*, size_t> modes_; // 0 where it has none
};

} // namespace torchmdla
