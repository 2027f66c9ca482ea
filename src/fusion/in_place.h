// Ops in place (`y += x`, `relu_`) on tensors that no other code accesses.
#pragma once

#include "device_table.h"
#include "graph_values.h"

#include <torch/csrc/jit/ir/ir.h>

#include <memory>
#include <optional>

namespace torchmdla {

// Return whether `node` writes its first argument, does not write any other one, and returns it.
bool is_in_place(const torch::jit::Node* node);

// Return the kind of the op that returns a new tensor, derived from the name of an op in place.
std::optional<c10::Symbol> functional_kind(c10::Symbol kind);

// Replace ops in place by ops that return a new tensor, so that groups contain no writes. Later
// uses of the written tensor use the new tensor. This happens where the device supports the op and
// no other value that shares the memory is used later. For a write through slices (`mask[a:b] =
// k`), the new tensor is the whole tensor with the new part inserted. An op in place keeps its
// tensor's dtype and strides, and raises if it cannot. To preserve this, the new nodes are marked;
// call `restore_in_place` once groups are formed.
//
// Lists of tensors move to their readers, so that a list does not hold a tensor that is written in
// between.
void make_functional(const std::shared_ptr<torch::jit::Graph>& graph, const DeviceTable& table,
                     const NodeSet& left_out);

// Turn marked nodes back into ops in place, also in groups. They write to a copy if the tensor has
// other uses.
void restore_in_place(torch::jit::Block* block, bool in_group = false);

} // namespace torchmdla
