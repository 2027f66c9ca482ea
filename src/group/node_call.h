// Evaluation of one node of a flat graph.
#pragma once

#include <ATen/core/stack.h>
#include <torch/csrc/jit/ir/ir.h>

namespace torchmdla {

// Compute `node`, which has no inner blocks, by eager kernels. The stack holds only its inputs
// before and only its outputs after. Exceptions are PyTorch's.
void call_node(const torch::jit::Node& node, torch::jit::Stack& stack);

} // namespace torchmdla
