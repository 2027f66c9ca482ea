// Runs the graphs that lazy devices gather, on CPU tensors, by groups of a device.
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

// Any thread may call, without the GIL. Graphs that are equal but for their float constants (an
// optimiser's step size, Adam's bias corrections) share a plan: what varies becomes an input, and
// nothing is compiled again.
//
// Groups pack the inputs that are weights, but a lazy graph does not say which those are. So a plan
// finds out: its first run interprets and remembers, as PyTorch's profiling executor does; the
// second forms groups, with the inputs as parameters that are used as weights alone
// (weight_inputs.h) and were the same tensors, unwritten, in both runs. Where one of them keeps
// changing after all (training begins), groups are formed again without it.
class GraphRunner {
public:
  // How one graph, and all that are equal to it, are run.
  class Plan;

  struct Prepared {
    std::shared_ptr<Plan> plan;
    std::vector<double> floats; // the graph's float constants
  };

  // `group_kind`: of the nodes formed, `group_symbol()` or `acap_group_symbol()`. `device`: whose
  // table decides. Throws c10::Error when no such table is there.
  GraphRunner(c10::Symbol group_kind, const std::string& device);

  // `graph`: a flat sequence of functional ATen calls, whose inputs are tensors and numbers. It is
  // not changed, nor may the caller change it later. Of each kind of plan the `most_plans` last
  // used ones are kept.
  Prepared prepare(const std::shared_ptr<torch::jit::Graph>& graph);

  // Runs it without gradients, whatever modes the calling thread is in; returns the graph's
  // outputs. An output may be one of the inputs or a view of another output. Throws what PyTorch
  // throws.
  static std::vector<c10::IValue> run(const Prepared& prepared, std::vector<c10::IValue> inputs);

  // The graph as it runs: with the groups that its plan has formed by now.
  static std::shared_ptr<const torch::jit::Graph> grouped_graph(const Prepared& prepared);

  static constexpr size_t most_plans = 1024;

private:
  using Recent = std::list<std::pair<std::string, std::shared_ptr<Plan>>>; // the last used first

  const c10::Symbol group_kind_;
  const std::shared_ptr<const DeviceTable> table_;
  std::mutex mutex_;
  Recent recent_;                                            // guarded by mutex_
  std::unordered_map<std::string, Recent::iterator> by_key_; // guarded by mutex_
};

} // namespace torchmdla
