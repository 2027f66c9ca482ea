#include "graph_runner.h"

#include "base/forks.h"
#include "fusion/fusion_pass.h"
#include "graph_key.h"
#include "group/statistics.h"
#include "group/ungrouped.h"
#include "plain_modes.h"
#include "runtime/packed.h"
#include "weight_inputs.h"

#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/passes/constant_pooling.h>
#include <torch/csrc/jit/runtime/interpreter.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

namespace torchmdla {

using torch::jit::Graph;
using torch::jit::Stack;

namespace {

// Number of runs in a row in which a weight must change to lose its status: the program then
// trains. With a lower number, loading other weights once would end packing permanently.
constexpr int most_changes = 3;

// Return whether two numbers have the same bits: -0.0 differs from 0.0, and NaN equals itself.
bool is_identical(double left, double right) {
  return std::memcmp(&left, &right, sizeof left) == 0;
}

// Return whether a constant of the graph is -0.0, which PyTorch's constant pooling merges with 0.
bool has_negative_zero(const Graph& graph) {
  return std::any_of(graph.nodes().begin(), graph.nodes().end(), [](const torch::jit::Node* node) {
    if (node->kind() != c10::prim::Constant) return false;
    const auto known = torch::jit::toIValue(node->output());
    if (!known) return false;
    const bool is_number = known->isTensor() && known->toTensor().numel() == 1 &&
                           known->toTensor().is_floating_point();
    if (!known->isDouble() && !is_number) return false;
    const auto number = is_number ? known->toTensor().item<double>() : known->toDouble();
    return number == 0 && std::signbit(number);
  });
}

} // namespace

class GraphRunner::Plan {
public:
  Plan(const std::shared_ptr<Graph>& graph, c10::Symbol group_kind,
       std::shared_ptr<const DeviceTable> table)
      : graph_(graph->copy()), group_kind_(group_kind), table_(std::move(table)),
        name_(group_name(graph_)), weights_(weight_inputs(*graph_)) {
    varying_.assign(float_constants(*graph_).size(), false);
  }

  std::vector<c10::IValue> run(const std::vector<double>& floats, std::vector<c10::IValue> inputs) {
    const PlainModes modes;
    const auto form = observe(floats, inputs);
    return form->run(floats, std::move(inputs));
  }

  std::shared_ptr<const Graph> graph() const {
    const auto form = form_.load();
    return form ? form->graph : graph_;
  }

private:
  // The graph in a form that is ready to run, with or without groups. It is immutable once
  // published.
  struct Form {
    std::shared_ptr<Graph> graph;
    torch::jit::Code code;
    std::vector<size_t> lifted;                     // floats that are inputs
    std::vector<std::pair<size_t, double>> written; // floats that are constants
    std::vector<size_t> parameters;                 // indices of inputs
    bool has_groups;

    // Return whether this form computes the same as the graph with these floats.
    bool has_same_constants(const std::vector<double>& floats) const {
      return std::all_of(written.begin(), written.end(), [&](const auto& constant) {
        return is_identical(floats[constant.first], constant.second);
      });
    }

    std::vector<c10::IValue> run(const std::vector<double>& floats, Stack stack) const {
      for (const auto index : lifted)
        stack.emplace_back(floats[index]);
      torch::jit::InterpreterState(code).run(stack);
      return stack;
    }
  };

  // State of a weight in the last run that checked it. The content is not included: if it changes
  // without a new version, groups detect that.
  struct ObservedWeight {
    size_t input;
    std::optional<ParameterState> state;
    int changes = 0; // in a row
  };

  // Return the form for this run. It also checks the parameters, unless another thread is doing
  // that.
  std::shared_ptr<const Form> observe(const std::vector<double>& floats,
                                      const std::vector<c10::IValue>& inputs) {
    if (auto form = form_.load(); form && form->has_same_constants(floats)) {
      if (form->parameters.empty() && form->has_groups) return form;
      const ForkGuard section;
      const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
      if (form->has_groups && (!lock || !check_parameters(inputs))) return form;
    }
    const ForkSafeLock guard(mutex_);
    return next_form(floats, inputs);
  }

  std::shared_ptr<const Form> next_form(const std::vector<double>& floats,
                                        const std::vector<c10::IValue>& inputs) {
    const auto form = form_.load();
    if (!form) return first_form(floats, inputs);
    const auto before = observed_.size();
    std::erase_if(observed_, [&](const ObservedWeight& weight) {
      if (form->has_groups) return weight.changes >= most_changes;
      return !is_unchanged(weight, inputs[weight.input].toTensor());
    });
    // Another thread may have formed the groups in the meantime.
    if (form->has_groups && form->has_same_constants(floats) && observed_.size() == before)
      return form;
    for (size_t i = 0; i < floats.size(); ++i)
      if (!is_identical(floats[i], floats_[i])) varying_[i] = true;
    std::vector<size_t> parameters;
    for (const auto& weight : observed_)
      parameters.push_back(weight.input);
    return publish(make_form(floats, varying_, std::move(parameters), /*has_groups=*/true));
  }

  // Publish a form without groups, which is interpreted and supports any floats.
  std::shared_ptr<const Form> first_form(const std::vector<double>& floats,
                                         const std::vector<c10::IValue>& inputs) {
    for (const auto input : weights_)
      observed_.push_back({input, state_of(inputs[input])});
    floats_ = floats;
    const std::vector<bool> all(floats.size(), true);
    return publish(make_form(floats, all, /*parameters=*/{}, /*has_groups=*/false));
  }

  // Check the parameters. Return whether one of them has changed too often.
  bool check_parameters(const std::vector<c10::IValue>& inputs) {
    bool any = false;
    for (auto& weight : observed_) {
      const auto& tensor = inputs[weight.input].toTensor();
      if (is_unchanged(weight, tensor)) {
        weight.changes = 0;
        continue;
      }
      weight.state = state_of(inputs[weight.input]);
      any |= ++weight.changes >= most_changes;
    }
    return any;
  }

  static std::optional<ParameterState> state_of(const c10::IValue& input) {
    const auto& tensor = input.toTensor();
    if (!tensor.defined() || !tensor.has_storage()) return std::nullopt;
    return ParameterState(tensor);
  }

  static bool is_unchanged(const ObservedWeight& weight, const at::Tensor& tensor) {
    return weight.state && weight.state->describes(tensor, tensor.const_data_ptr());
  }

  std::shared_ptr<const Form> make_form(const std::vector<double>& floats,
                                        const std::vector<bool>& lift,
                                        std::vector<size_t> parameters, bool has_groups) const {
    auto graph = graph_->copy();
    std::vector<size_t> lifted;
    std::vector<std::pair<size_t, double>> written;
    const auto constants = float_constants(*graph);
    for (size_t i = 0; i < constants.size(); ++i) {
      if (lift[i]) {
        lifted.push_back(i);
        constants[i]->output()->replaceAllUsesWith(
            graph->addInput()->setType(c10::FloatType::get()));
        constants[i]->destroy();
      } else {
        written.emplace_back(i, floats[i]);
        constants[i]->f_(c10::attr::value, floats[i]);
      }
    }
    if (!has_negative_zero(*graph)) torch::jit::ConstantPooling(graph);
    if (has_groups) {
      const std::vector<int64_t> indices(parameters.begin(), parameters.end());
      statistics().groups +=
          static_cast<int64_t>(fuse_groups(graph, *table_,
                                           {.parameters = indices,
                                            .group_kind = group_kind_,
                                            .ungrouped = count_ungrouped(*table_),
                                            .failed = count_failed_pass}));
    }
    torch::jit::Code code(graph, name_);
    return std::make_shared<const Form>(Form{std::move(graph), std::move(code), std::move(lifted),
                                             std::move(written), std::move(parameters),
                                             has_groups});
  }

  std::shared_ptr<const Form> publish(std::shared_ptr<const Form> form) {
    form_.store(form);
    return form;
  }

  const std::shared_ptr<Graph> graph_;
  const c10::Symbol group_kind_;
  const std::shared_ptr<const DeviceTable> table_;
  const std::string name_;
  const std::vector<size_t> weights_;

  RcuCell<const Form> form_;
  std::mutex mutex_;
  std::vector<double> floats_;           // those of the first run; guarded by mutex_
  std::vector<bool> varying_;            // floats that have changed; guarded by mutex_
  std::vector<ObservedWeight> observed_; // inputs still regarded as weights; guarded by mutex_
};

GraphRunner::GraphRunner(c10::Symbol group_kind, const std::string& device)
    : group_kind_(group_kind), table_(device_table(device)) {
  TORCH_CHECK(table_, "torchmdla: no table of the device \"", device, "\" is loaded");
}

GraphRunner::Prepared GraphRunner::prepare(const std::shared_ptr<Graph>& graph) {
  std::vector<double> floats;
  for (const auto* constant : float_constants(*graph))
    floats.push_back(constant->f(c10::attr::value));
  auto key = graph_key(*graph);
  const ForkSafeLock guard(mutex_);
  if (const auto entry = by_key_.find(key); entry != by_key_.end()) {
    recent_.splice(recent_.begin(), recent_, entry->second);
  } else {
    recent_.emplace_front(key, std::make_shared<Plan>(graph, group_kind_, table_));
    by_key_.emplace(std::move(key), recent_.begin());
    if (recent_.size() > most_plans) {
      by_key_.erase(recent_.back().first);
      recent_.pop_back();
    }
  }
  return {recent_.front().second, std::move(floats)};
}

std::vector<c10::IValue> GraphRunner::run(const Prepared& prepared,
                                          std::vector<c10::IValue> inputs) {
  return prepared.plan->run(prepared.floats, std::move(inputs));
}

std::shared_ptr<const Graph> GraphRunner::grouped_graph(const Prepared& prepared) {
  return prepared.plan->graph();
}

} // namespace torchmdla
