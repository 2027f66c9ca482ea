// Execution of nodes without a graph, each by PyTorch's own kernel.
#pragma once

#include "graph.h"

#include <vector>

namespace torchmdla::acap {

// Call the ops of `nodes`, operands before users, one by one on CPU tensors. Return one tensor for
// each of `outputs`, which are results of the nodes. Exceptions of the ops are passed on.
std::vector<at::Tensor> run_op_by_op(const std::vector<Node*>& nodes,
                                     const std::vector<ValuePtr>& outputs);

} // namespace torchmdla::acap
