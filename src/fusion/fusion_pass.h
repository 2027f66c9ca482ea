// Which nodes of a TorchScript graph join a group.
#pragma once

#include "device_table.h"

#include <torch/csrc/jit/ir/ir.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace torchmdla {

// The node kind of a group: `mdla::CompilationGroup`, with its subgraph in `attr::Subgraph`, the
// device's name in `device` and the indices of inputs that are module attributes in `parameters`. A
// group with nodes that run, or are compiled, on conditions has the indices of its boolean inputs
// in `flags`: it is grouped anew for their values (mode_specialised_group.h).
c10::Symbol group_symbol();
// `acap::CompilationGroup`, the same in graphs that the acap device gathers.
c10::Symbol acap_group_symbol();
c10::Symbol device_attribute();
c10::Symbol parameters_attribute();
c10::Symbol flags_attribute();
// On groups that read or make tensors that something outside of them writes to. Autograd must save
// what each operator needs on its own then: to write to a saved tensor is an error of the backward
// pass only where a gradient comes for that operator, while a differentiable graph is one node.
c10::Symbol written_attribute();
bool is_written_around(const torch::jit::Node* group);
// The indices of inputs whose length the data of other tensors decides; absent where there are
// none.
c10::Symbol varying_attribute();
std::vector<int64_t> varying_inputs(const torch::jit::Node* group);
// On groups whose graph has not run before they were formed (group/compilation_group.h).
c10::Symbol first_run_attribute();

// A group's name for people, from its subgraph.
std::string group_name(const std::shared_ptr<torch::jit::Graph>& subgraph);

// Why an operator that computes with tensors is in no group.
enum class Refusal {
  unsupported_operator,
  unsupported_dtype,
  argument_value,
  effects,
  written_view,
  other_mode,
  value_type,
  changing_integer,
  data_dependent_length,
  left_out,
  not_worth_it,
  failed_pass
};

// What people read of it; `device` takes the operators.
std::string describe(Refusal refusal, const std::string& device);

// An operator in no group, and where it stands in the user's program.
struct Ungrouped {
  const torch::jit::Node* node;
  Refusal refusal;
};

// Whether a node joins a group when the device takes it under conditions that only a call can tell.
enum class OpenConditions { assume_met, assume_violated };

struct FusionOptions {
  OpenConditions open_conditions = OpenConditions::assume_met;
  std::vector<int64_t> parameters = {}; // indices of the graph's inputs that are module attributes
  c10::Symbol group_kind = group_symbol(); // of the nodes that are groups
  bool written_around = false; // something outside of the graph writes to what it reads or makes
  std::vector<int64_t> varying = {}; // indices of the graph's inputs of varying lengths
  std::vector<size_t> left_out = {}; // numbers of the nodes of the graph's own block that join none
  // Is told of the operators in no group, while the graph has the nodes that it had.
  std::function<void(const Ungrouped&)> ungrouped = nullptr;
  // Is told why the pass failed, where it did.
  std::function<void(const std::string&)> failed = nullptr;
};

// Merges what `table` takes into maximal groups, in every block of `graph`. Pure C++: it runs under
// the executor's compile lock, where taking the GIL deadlocks. Returns the number of groups made.
// Throws nothing: where a stage of the pass fails, the graph is as it was before.
size_t fuse_groups(const std::shared_ptr<torch::jit::Graph>& graph, const DeviceTable& table,
                   const FusionOptions& options = {});

// The stages of `fuse_groups` by name, in order.
const std::vector<std::string>& pass_stages();

// Tests let this stage fail whenever it is reached, until they name another one; an empty name
// stands for none. Throws if there is no such stage.
void fail_pass_stage(const std::string& stage);

// Marks the groups of a block as such.
void mark_first_run(torch::jit::Block* block);

} // namespace torchmdla
