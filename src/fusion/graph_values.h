// Questions about the values of a graph that more than one part asks.
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

// Tensors, numbers, strings, devices, None, lists of numbers and optionals of these: what may enter
// or leave a group.
bool is_plain(const c10::TypePtr& type);

// `prim::ConstantChunk` and `prim::ListUnpack` have no schema, so no device table names them.
bool takes_apart(const torch::jit::Node* node);

// `assert`: a `prim::If` that does nothing or raises, and has no outputs.
bool is_assertion(const torch::jit::Node* node);

// Whether what comes behind `node` records gradients, or is cast, otherwise than what comes before
// it: the ends of a `with` statement, and a call that switches gradients on or off.
bool switches_modes(const torch::jit::Node* node);

// How many values the walks of passes have visited since the process began: what a program of twice
// the length takes is about twice as many.
size_t values_visited();

// Everything that `node` needs before it can run: its inputs and what its own blocks capture.
void for_each_input(torch::jit::Node* node, const std::function<void(torch::jit::Value*)>& visit);

// The node of `block` that `node` is or is nested in; null when it stands outside of it.
torch::jit::Node* node_in_block(torch::jit::Node* node, const torch::jit::Block* block);

// The values of `block` that some path leaves without content: what `prim::Uninitialized` makes,
// and what branches and loops make of that. A side that raises leaves nothing behind it.
ValueSet uninitialised_values(const torch::jit::Block* block);

// What loops count or carry, tensors apart, and what is computed from that: in each iteration
// another value.
ValueSet changing_values(const torch::jit::Block* block);

// `x[mask]`, where the graph tells that it is a mask.
bool indexes_by_mask(const torch::jit::Node* node);

// Whether the data of other tensors decides how long a tensor is: results of operators such as
// `nonzero`, and results of operators outside of groups that read such, or values of `known`.
bool has_data_dependent_length(const torch::jit::Value* value, const ValueSet& known);

// Tensors that are integers in disguise: tracing writes `x.size(0) // 2` as arithmetic on 0-d
// tensors from `prim::NumToTensor`. They are known once the sizes are.
//
// Adds the output of `node` to `known` when all its tensor inputs are in it (constants count), so
// that calling it over nodes in order finds them all. Returns whether it did.
bool follow_shape_tensors(const torch::jit::Node* node, ValueSet& known);

} // namespace torchmdla
