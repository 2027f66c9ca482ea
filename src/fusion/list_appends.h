// Lists of tensors that a program builds by `append`.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <memory>

namespace torchmdla {

// Replace each use of such a list by a list with its elements at that time, and remove the appends.
// Example: `[a, b]` after `l = [a]; l.append(b)`. Lengths and elements of the lists are then known.
// PyTorch's `RemoveListMutation` moves nodes for the same purpose. It gives up if a branch between
// them might write a tensor, although such a write does not change a list.
//
// A list is left alone if its block writes to it other than by `append`, or if it leaves its block.
// It is also left alone if a user could distinguish it from another list with the same elements.
void write_out_appends(const std::shared_ptr<torch::jit::Graph>& graph);

} // namespace torchmdla
