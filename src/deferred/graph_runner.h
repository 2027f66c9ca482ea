// Execution of graphs that lazy devices record, on CPU tensors, with groups of a device.
#pragma once

#include "fusion/device_table.h"

#include <ATen/core/ivalue.h>
#include <torch/csrc/jit/ir/ir.h>

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace torchmdla {

// Runner of graphs. Any thread may call it, without the GIL. Graphs that differ only in float
// constants (an optimiser's step size, Adam's bias corrections) share a plan. A float that varies
// becomes an input, without recompilation.
//
// Groups pack inputs that are weights, but a lazy graph does not mark these. A plan therefore
// determines them. Its first run interprets the graph and records inputs, as PyTorch's profiling
// executor does. The second run forms groups. An input is a parameter if it is used only as a
// weight (weight_inputs.h) and was the same unwritten tensor in both runs. If it keeps changing
// later (training begins), groups are formed again without it.
class GraphRunner {
public:
  // Execution plan of a graph and of all graphs with the same key.
  class Plan;

  struct Prepared {
    std::shared_ptr<Plan> plan;
    std::vector<double> floats; // the graph's float constants
  };

  // `group_kind` is the kind of group nodes: `group_symbol()` or `acap_group_symbol()`. `device` is
  // the device whose table is used. Throw c10::Error if there is no such table.
  GraphRunner(c10::Symbol group_kind, const std::string& device);

  // Prepare a flat sequence of functional ATen calls, whose inputs are tensors and numbers. The
  // graph is not changed, and the caller must not change it later. The `most_plans` most recently
  // used plans are kept.
  Prepared prepare(const std::shared_ptr<torch::jit::Graph>& graph);

  // Run the graph without gradients, regardless of the calling thread's modes, and return its
  // outputs. An output may be an input or a view of another output. Exceptions of PyTorch are
  // passed on.
  static std::vector<c10::IValue> run(const Prepared& prepared, std::vector<c10::IValue> inputs);

  // Return the graph in its current form, with the groups that its plan has formed.
  static std::shared_ptr<const torch::jit::Graph> grouped_graph(const Prepared& prepared);

  static constexpr size_t most_plans = 1024;

private:
  using Recent = std::list<std::pair<std::string, std::shared_ptr<Plan>>>; // most recent first

  const c10::Symbol group_kind_;
  const std::shared_ptr<const DeviceTable> table_;
  std::mutex mutex_;
  Recent recent_;                                            // guarded by mutex_
  std::unordered_map<std::string, Recent::iterator> by_key_; // guarded by mutex_
};

} // namespace torchmdla
