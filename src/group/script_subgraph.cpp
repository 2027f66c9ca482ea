#include "script_subgraph.h"

#include "fusion/device_table.h"
#include "fusion/fusion_pass.h"
#include "support/forks.h"

#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <string>
#include <unordered_set>
#include <variant>

namespace torchmdla {

using torch::jit::Graph;
using torch::jit::Stack;
using torch::jit::Value;

namespace {

// Set while a group's own executor runs: a group inside of it that needs gradients after all must
// not start another one.
thread_local bool in_differentiable_run = false;

bool takes_dtype(const DeviceTable& table, const RecordedValue& value) {
  if (const auto* meta = std::get_if<TensorMeta>(&value.seen)) return table.takes(meta->dtype);
  const auto* metas = std::get_if<TensorMetas>(&value.seen);
  return !metas || std::all_of(metas->begin(), metas->end(),
                               [&](const auto& meta) { return !meta || table.takes(meta->dtype); });
}

} // namespace

ScriptSubgraph::ScriptSubgraph(std::shared_ptr<torch::jit::Graph> graph, std::string device)
    : graph_(std::move(graph)), device_(std::move(device)), name_(group_name(graph_)) {
  const auto table = device_table(device_);
  TORCH_CHECK(table, "torchmdla: a group is for device \"", device_,
              "\", which is not loaded here; "
              "call torchmdla.enable(device=\"",
              device_, "\") first");
  for (const auto* node : graph_->nodes())
    if (const auto* rule = table->rule(node))
      for (const auto& [argument, wanted] : rule->where) {
        const auto* value = node->input(*node->schema().argumentIndexWithName(argument));
        if (value->node()->kind() != c10::prim::Constant)
          conditions_.push_back({value->debugName(), wanted});
      }
}

void ScriptSubgraph::run(Stack& stack) {
  std::call_once(interpreted_once_, [&] {
    const Unforked section;
    interpreted_.emplace(graph_, name_);
  });
  torch::jit::InterpreterState(*interpreted_).run(stack);
}

Record ScriptSubgraph::run_and_record(Stack& stack) {
  return torchmdla::run_and_record(*graph_, stack);
}

bool ScriptSubgraph::run_differentiable(Stack& stack) {
  if (in_differentiable_run) return false;
  std::call_once(differentiable_once_, [&] {
    const Unforked section;
    differentiable_.emplace(*graph_, name_);
  });
  in_differentiable_run = true;
  const auto leave = c10::make_scope_exit([] { in_differentiable_run = false; });
  differentiable_->run(stack);
  return true;
}

bool ScriptSubgraph::conditions_hold(const Record& record) const {
  return std::all_of(conditions_.begin(), conditions_.end(), [&](const Condition& condition) {
    const auto found = std::find_if(record.begin(), record.end(), [&](const RecordedValue& seen) {
      return seen.name == condition.value;
    });
    const auto* value = found == record.end() ? nullptr : std::get_if<c10::IValue>(&found->seen);
    return value && value->equals(condition.wanted).toBool();
  });
}

std::vector<size_t> ScriptSubgraph::not_taken(const Record& record) const {
  const auto table = device_table(device_);
  std::unordered_set<std::string> refused;
  for (const auto& value : record)
    if (table && !takes_dtype(*table, value)) refused.insert(value.name);
  std::vector<size_t> result;
  if (refused.empty()) return result;
  const auto is_refused = [&](const Value* value) { return refused.count(value->debugName()) > 0; };
  size_t index = 0;
  for (const auto* node : graph_->nodes()) {
    const auto inputs = node->inputs(), outputs = node->outputs();
    if (std::any_of(inputs.begin(), inputs.end(), is_refused) ||
        std::any_of(outputs.begin(), outputs.end(), is_refused))
      result.push_back(index);
    ++index;
  }
  return result;
}

Subgraph::Division ScriptSubgraph::divide(const std::vector<size_t>& left_out,
                                          const std::vector<int64_t>& parameters) {
  const Unforked section;
  const auto table = device_table(device_);
  auto graph = graph_->copy();
  if (fuse_groups(graph, *table, OpenConditions::assume_violated, parameters, group_symbol(),
                  left_out) == 0)
    return nullptr;
  auto code = std::make_shared<torch::jit::Code>(graph, name_);
  return [code](Stack& stack) { torch::jit::InterpreterState(*code).run(stack); };
}

} // namespace torchmdla
