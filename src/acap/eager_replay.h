// Running nodes without a graph: each by PyTorch's own kernel.
#pragma once

#include "graph.h"

#include <vector>

namespace torchmdla::acap {

// Calls the ops of `nodes`, operands before users, one by one on CPU tensors. Gives one tensor for
// each of `outputs`, which are results of the nodes. Throws what the ops throw.
std::vector<at::Tensor> call_singly(const std::vector<Node*>& nodes,
                                    const std::vector<ValuePtr>& outputs);

} // namespace torchmdla::acap
