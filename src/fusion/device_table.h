// What a device takes: its operators and dtypes, handed over from Python by `torchmdla.enable`.
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

// The meanings stand in torchmdla/devices/device.py, `OpSupport`.
enum class OpKind { compute, cheap, view, shape, item };

// An operator overload that the device takes, if the named arguments have these values.
struct OpRule {
  OpKind kind;
  std::vector<std::pair<std::string, c10::IValue>> where;
};

// What a graph tells of the values that a rule asks for. `open`: some are known at run time only
// (a scripted module reads `self.training` in every call).
enum class Conditions { met, open, violated };

struct DeviceTable {
  std::string device;
  std::unordered_map<c10::OperatorName, OpRule> ops;
  std::unordered_set<c10::ScalarType> dtypes;

  // The rule for `node`, or null when the device does not take it. Dtypes that the graph already
  // knows (profiled types) count: a node with another dtype is not taken.
  const OpRule* rule(const torch::jit::Node* node) const;

  // Whether the device takes the operator of `node`, for some dtypes.
  bool has(const torch::jit::Node* node) const { return find(node) != nullptr; }

  // Whether `node` has the argument values that `rule` asks for, as far as the graph tells.
  Conditions conditions(const torch::jit::Node* node, const OpRule& rule) const;

  // Whether a tensor of this dtype may enter, leave or live in a group.
  bool takes(c10::ScalarType dtype) const { return dtypes.count(dtype) != 0; }

  // The same for the type of a value; true where it is no tensor or its dtype is unknown yet.
  bool takes_type(const torch::jit::Value* value) const;

private:
  const OpRule* find(const torch::jit::Node* node) const;
};

// The table of the device in use, or of a device that was added; null if there is none. Safe to
// call from any thread.
std::shared_ptr<const DeviceTable> current_device_table();
std::shared_ptr<const DeviceTable> device_table(const std::string& device);
void add_device_table(std::shared_ptr<const DeviceTable> table);
// Makes a device that was added the one in use; an empty name: none.
void use_device_table(const std::string& device);

} // namespace torchmdla
