// Lists of tensors that a program builds by `append`.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <memory>

namespace torchmdla {

// Gives every reader of such a list the list as it then is, `[a, b]` for `l = [a]; l.append(b)`,
// and removes the appends; lengths and elements of it are then known. PyTorch's
// `RemoveListMutation` moves nodes to the same end, and gives up where a branch between them might
// write a tensor, though no write to a tensor changes a list.
//
// A list is left alone if anything but an append of its own block writes to it, or if it leaves its
// block, or goes where it could be told from another list with the same elements.
void write_out_appends(const std::shared_ptr<torch::jit::Graph>& graph);

} // namespace torchmdla
