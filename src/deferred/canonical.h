// Conversion of graphs from lazy devices to the operators that programs use.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <memory>

namespace torchmdla {

// Replace the copying forms of views (`aten::view_copy`, …) by views, because values of such a
// graph are not written to. Also replace operators that compute unused results (indices of a
// pooling, saved statistics of a norm). Types of outputs are kept.
void make_canonical(const std::shared_ptr<torch::jit::Graph>& graph);

} // namespace torchmdla
