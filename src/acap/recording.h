// Kernel of nearly all operators on the acap device. It records a call instead of running it.
#pragma once

#include "graph.h"

#include <ATen/core/stack.h>

namespace torchmdla::acap {

// Record a call of `op` (boxed kernel). Calls that a graph cannot represent run on the CPU:
// data-dependent sizes, results that are not tensors, random numbers, and errors, which are then
// the CPU's own.
void record(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// Make `content` the content of `tensor`, cast to its dtype. It must have the sizes of `tensor`.
void write_content(const at::Tensor& tensor, const ValuePtr& content);

// Set the number of pending nodes above which the graph is cut and computed.
void set_most_pending_nodes(size_t most);

} // namespace torchmdla::acap
