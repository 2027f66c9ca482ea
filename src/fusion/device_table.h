// Operators and dtypes that a device supports. `torchmdla.enable` passes them from Python.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/operator_name.h>
#include <torch/csrc/jit/ir/ir.h>

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace torchmdla {

// The kinds are described in torchmdla/devices/device.py, `OpSupport`.
enum class OpKind { compute, cheap, view, shape, item };

// Rule for an operator overload: the device supports it if the named arguments have these values.
struct OpRule {
  OpKind kind;
  std::vector<std::pair<std::string, c10::IValue>> where;
};

// Result of a check of the argument values that a rule requires. `open`: some values are known only
// at run time (a scripted module reads `self.training` in every call). `training`: constants say
// that the node trains, so only programs of training steps (group/training.h) support it.
enum class Conditions { met, open, training, violated };

struct DeviceTable {
  std::string device;
  std::unordered_map<c10::OperatorName, OpRule> ops;
  std::unordered_set<c10::ScalarType> dtypes;
  bool is_asynchronous = false; // results of its groups may be pending (waits.h)

  // Return the rule for `node`, or null if the device does not support it. A dtype that the graph
  // already knows (a profiled type) must be supported too.
  const OpRule* rule(const torch::jit::Node* node) const;

  // Return whether the device supports the operator of `node`, for some dtypes.
  bool has(const torch::jit::Node* node) const { return find(node) != nullptr; }

  // Return whether `node` has the argument values that `rule` requires, as far as the graph shows.
  Conditions conditions(const torch::jit::Node* node, const OpRule& rule) const;

  // Return whether a tensor of this dtype may enter or leave a group, or exist in it.
  bool supports(c10::ScalarType dtype) const { return dtypes.count(dtype) != 0; }

  // Return whether a value's type is supported. True if it is not a tensor or its dtype is unknown
  // yet.
  bool supports_type(const torch::jit::Value* value) const;

private:
  const OpRule* find(const torch::jit::Node* node) const;
};

// Return the table of the device in use, or of a device that was added; null if there is none. Both
// functions are thread-safe.
std::shared_ptr<const DeviceTable> current_device_table();
std::shared_ptr<const DeviceTable> device_table(const std::string& device);
void add_device_table(std::shared_ptr<const DeviceTable> table);
// Select a device that was added as the one in use. An empty name selects none.
void use_device_table(const std::string& device);

} // namespace torchmdla
