// Queries on the values of a graph that several parts of the compiler use.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/csrc/jit/ir/ir.h>

#include <functional>
#include <unordered_set>

namespace torchmdla {

using NodeSet = std::unordered_set<const torch::jit::Node*>;
using ValueSet = std::unordered_set<const torch::jit::Value*>;

bool is_tensor(const torch::jit::Value* value);
bool is_tensor_list(const torch::jit::Value* value);
bool is_constant(const torch::jit::Node* node);

// Return whether values of this type may enter or leave a group: tensors, numbers, strings,
// devices, None, lists of numbers and optionals of these.
bool is_plain(const c10::TypePtr& type);

// Return whether `node` is a `prim::ConstantChunk` or `prim::ListUnpack`. They do not have a
// schema, so device tables do not contain them.
bool unpacks(const torch::jit::Node* node);

// Return whether `node` is an `assert`: a `prim::If` that does nothing or raises, and has no
// outputs.
bool is_assertion(const torch::jit::Node* node);

// Return whether `node` switches the gradient mode or autocasting: an end of a `with` statement, or
// a call that switches gradients on or off.
bool switches_modes(const torch::jit::Node* node);

// Return the number of values that passes have visited since the process began. A program of twice
// the length should take about twice as many.
size_t values_visited();

// Visit every value that `node` needs before it can run: its inputs and the values that its blocks
// capture.
void for_each_input(torch::jit::Node* node, const std::function<void(torch::jit::Value*)>& visit);

// Return the node of `block` that is or contains `node`, or null if `node` is outside of the block.
torch::jit::Node* node_in_block(torch::jit::Node* node, const torch::jit::Block* block);

// Return the values of `block` that are uninitialised on some path: outputs of
// `prim::Uninitialized` and results of branches and loops that depend on them. A side that always
// raises does not count.
ValueSet uninitialised_values(const torch::jit::Block* block);

// Return the loop counters and carried values that are not tensors, and all values computed from
// them. They change in each iteration.
ValueSet changing_values(const torch::jit::Block* block);

// Return whether `node` is `x[mask]` and the graph shows that the index is a mask.
bool indexes_by_mask(const torch::jit::Node* node);

// Return whether the length of a tensor depends on the data of other tensors. Such tensors are
// results of operators such as `nonzero` and values in `known`. Results of operators outside of
// groups that read such a tensor count too.
bool has_data_dependent_length(const torch::jit::Value* value, const ValueSet& known);

// Follow tensors that represent integers. Tracing writes `x.size(0) // 2` as arithmetic on 0-d
// tensors from `prim::NumToTensor`. Their values are known once the sizes are.
//
// Add the output of `node` to `known` if all its tensor inputs are in `known` or constant. Return
// whether it was added. Calling this for the nodes in order finds all such tensors.
bool follow_shape_tensors(const torch::jit::Node* node, ValueSet& known);

} // namespace torchmdla
