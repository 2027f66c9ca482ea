// The graphs that lazy devices write, in the operators that programs use.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <memory>

namespace torchmdla {

// Replaces the copying forms of views (`aten::view_copy`, …) by the views, as nobody writes to a
// value of such a graph, and operators that compute more than is used (indices of a pooling, saved
// statistics of a norm) by those that do not. Types of outputs are kept.
void make_canonical(const std::shared_ptr<torch::jit::Graph>& graph);

} // namespace torchmdla
