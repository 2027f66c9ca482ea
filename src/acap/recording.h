// The kernel of nearly all operators on the acap device: writes a call down instead of running it.
#pragma once

#include "graph.h"

#include <ATen/core/stack.h>

namespace torchmdla::acap {

// Boxed. What a graph cannot hold (data-dependent sizes, results that are no tensors, random
// numbers, errors, which are the CPU's own then) runs on the CPU.
void record(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// Makes `content` what `tensor` holds, in its dtype; it has the tensor's sizes.
void write_content(const at::Tensor& tensor, const ValuePtr& content);

// Cuts the graph when more nodes than this are pending.
void set_most_pending_nodes(size_t most);

} // namespace torchmdla::acap
