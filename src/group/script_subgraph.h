// The subgraph of a group in a TorchScript graph.
#pragma once

#include "differentiable.h"
#include "fusion/fusion_pass.h"
#include "subgraph.h"

#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/runtime/interpreter.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace torchmdla {

class ScriptSubgraph : public Subgraph {
public:
  // `written_around` and `varying` are the attributes of groups (fusion/fusion_pass.h).
  ScriptSubgraph(std::shared_ptr<torch::jit::Graph> graph, std::string device, bool written_around,
                 std::vector<int64_t> varying);

  const std::shared_ptr<torch::jit::Graph>& graph() const { return graph_; }
  const std::string& name() const { return name_; }

  void run(torch::jit::Stack& stack) override;
  Record run_and_record(torch::jit::Stack& stack) override;

  std::vector<double> time_nodes(torch::jit::Stack& stack) override;
  bool writes_inputs() const override;

  // Run the subgraph in an executor of its own. It serves a group that was formed in a run without
  // gradients (tracing checks its result in one) and is called with them. The executor profiles the
  // subgraph again, and forms groups inside of its differentiable graphs, forward and backward.
  bool run_differentiable(torch::jit::Stack& stack) override;

  bool is_written_around() const override { return written_around_; }

  std::string input_name(size_t input) const override {
    return "%" + graph_->inputs().at(input)->debugName();
  }
  std::vector<c10::TypePtr> input_types() const override;
  std::optional<size_t> num_outputs() const override { return graph_->outputs().size(); }
  std::optional<Structure> structure(const std::string& device,
                                     const std::vector<int64_t>& parameters) const override;
  at::Tensor constant(size_t node, std::optional<size_t> element) const override;

  bool conditions_hold(const Record& record) const override;

  Division divide(const std::vector<size_t>& excluded_nodes,
                  const std::vector<int64_t>& parameters) override;

  // Form groups in `graph`, a copy of the subgraph. Return their number. `options` are completed.
  size_t fuse_groups(const std::shared_ptr<torch::jit::Graph>& graph, FusionOptions options) const;

  // Return a function that interprets `graph`, a copy of the subgraph with groups.
  Division interpreted(const std::shared_ptr<torch::jit::Graph>& graph) const;

private:
  // A value that must equal `wanted` for its node to be compiled.
  struct Condition {
    std::string value;
    c10::IValue wanted;
  };

  const std::shared_ptr<torch::jit::Graph> graph_;
  const std::string device_;
  const bool written_around_;
  const std::vector<int64_t> varying_;
  const std::string name_;
  std::vector<Condition> conditions_;

  std::once_flag interpreted_once_;
  std::optional<torch::jit::Code> interpreted_; // set under interpreted_once_

  std::once_flag differentiable_once_;
  std::optional<DifferentiableGraph> differentiable_; // set under differentiable_once_
};

} // namespace torchmdla
