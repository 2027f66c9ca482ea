// One node of a flat graph.
#pragma once

#include <ATen/core/stack.h>
#include <torch/csrc/jit/ir/ir.h>

namespace torchmdla {

// Computes `node` (no inner blocks) by eager kernels: the stack holds its inputs alone, and then
// its outputs alone. Throws what PyTorch throws.
void call_node(const torch::jit::Node& node, torch::jit::Stack& stack);

} // namespace torchmdla
