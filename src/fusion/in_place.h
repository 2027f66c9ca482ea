// Ops in place (`y += x`, `relu_`) on tensors that nobody else sees.
#pragma once

#include "device_table.h"
#include "graph_values.h"

#include <torch/csrc/jit/ir/ir.h>

#include <memory>
#include <optional>

namespace torchmdla {

// Whether `node` writes its first argument, and nothing else, and returns it.
bool is_in_place(const torch::jit::Node* node);

// Of the kind of an op in place, by its name, that of the op which returns a new tensor.
std::optional<c10::Symbol> functional_kind(c10::Symbol kind);

// Replaces an op in place by the op that returns a new tensor, and every later use of what it wrote
// by that, where the device takes the op and nothing else that shares the memory is used any more.
// Of what is written through slices (`mask[a:b, c:d] = k`) so is the whole tensor, by one that has
// the new part in its place.
// The groups that are formed then see no writes. What the two ops differ in (an op in place keeps
// its tensor's dtype and strides, and raises where it cannot) is kept: the new nodes are marked,
// and `restore_in_place` is due once groups stand.
//
// Reads of lists of tensors move to where the lists are read, so that a list holds no tensor that
// is written before that.
void make_functional(const std::shared_ptr<torch::jit::Graph>& graph, const DeviceTable& table,
                     const NodeSet& left_out);

// Makes marked nodes ops in place again, in groups too, of a copy where the tensor has other uses.
void restore_in_place(torch::jit::Block* block, bool in_group = false);

} // namespace torchmdla
