// Pass that moves nodes of a TorchScript graph into groups.
#pragma once

#include "device_table.h"

#include <torch/csrc/jit/ir/ir.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace torchmdla {

// Node kind of a group: `mdla::CompilationGroup`. The subgraph is in `attr::Subgraph`, the device's
// name is in `device`. `parameters` has the indices of inputs that are module attributes. Nodes of
// a group may run, or be compiled, only under conditions. The group then has the indices of its
// boolean inputs in `flags`, and groups are formed again for their values
// (mode_specialised_group.h).
c10::Symbol group_symbol();
// `acap::CompilationGroup`, the node kind of groups in graphs that the acap device records.
c10::Symbol acap_group_symbol();
c10::Symbol device_attribute();
c10::Symbol parameters_attribute();
c10::Symbol flags_attribute();
// Attribute of groups that read or return tensors that something outside of the group writes to.
// Autograd must then save the values of each operator separately. Writing to a saved tensor is an
// error of the backward pass only if a gradient reaches its operator. A differentiable graph is one
// node and cannot distinguish its operators.
c10::Symbol written_attribute();
bool has_external_writes(const torch::jit::Node* group);
// Indices of inputs whose length depends on the data of other tensors. The attribute is absent if
// there are no such inputs.
c10::Symbol varying_attribute();
std::vector<int64_t> varying_inputs(const torch::jit::Node* group);
// Attribute of groups whose graph has not run before they were formed (group/compilation_group.h).
c10::Symbol first_run_attribute();

// Return a group's name for humans, from its subgraph.
std::string group_name(const std::shared_ptr<torch::jit::Graph>& subgraph);

// Reason why an operator that computes with tensors is in no group.
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

// Return a text for humans; `device` is the name of the device that supports the operators.
std::string describe(Refusal refusal, const std::string& device);

// Operator in no group. The node has its location in the user's program.
struct Ungrouped {
  const torch::jit::Node* node;
  Refusal refusal;
};

// Treatment of a node that the device supports under conditions that only a call determines.
enum class OpenConditions { assume_met, assume_violated };

struct FusionOptions {
  OpenConditions open_conditions = OpenConditions::assume_met;
  std::vector<int64_t> parameters = {}; // indices of the graph's inputs that are module attributes
  bool joins_training = false;          // groups contain nodes that only training steps support
  bool joins_lone = false; // one cheap operator forms a group, too: nothing else can run it
  c10::Symbol group_kind = group_symbol(); // kind of the nodes that are groups
  bool has_external_writes =
      false; // the graph's inputs or results are written to outside of the graph
  std::vector<int64_t> varying = {}; // indices of the graph's inputs of varying lengths
  std::vector<size_t> left_out = {}; // numbers of top-level nodes that join no group
  // Callback for each operator in no group. The graph still has its original nodes at that time.
  std::function<void(const Ungrouped&)> ungrouped = nullptr;
  // Callback that receives the reason if the pass failed.
  std::function<void(const std::string&)> failed = nullptr;
};

// Merge the nodes that `table` supports into maximal groups, in every block of `graph`. Return the
// number of groups. The pass is pure C++: it runs under the executor's compile lock, where
// acquiring the GIL would deadlock. It does not throw: if a stage fails, the graph is restored.
size_t fuse_groups(const std::shared_ptr<torch::jit::Graph>& graph, const DeviceTable& table,
                   const FusionOptions& options = {});

// Return the names of the stages of `fuse_groups`, in order.
const std::vector<std::string>& pass_stages();

// Make a stage fail whenever it is reached, until another one is named (for tests). An empty name
// disables this. Throw if there is no such stage.
void fail_pass_stage(const std::string& stage);

// Mark the groups of a block with `first_run_attribute()`.
void mark_first_run(torch::jit::Block* block);

} // namespace torchmdla
