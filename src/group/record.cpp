#include "record.h"

#include "node_call.h"

#include <algorithm>
#include <chrono>
#include <unordered_map>

namespace torchmdla {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

namespace {

TensorMeta meta_of(const at::Tensor& tensor) {
  const auto quantisation = quantisation_of(tensor);
  const auto dtype = quantisation ? c10::toUnderlying(tensor.scalar_type()) : tensor.scalar_type();
  return {dtype, tensor.sizes().vec(), tensor.strides().vec(), quantisation};
}

// Return whether the value is a list of tensors, or of tensors and None.
bool holds_tensors(const c10::IValue& value) {
  if (!value.isList()) return false;
  const auto items = value.toListRef();
  return value.isTensorList() ||
         std::ranges::any_of(items, [](const c10::IValue& item) { return item.isTensor(); });
}

decltype(RecordedValue::value) describe(const c10::IValue& value) {
  if (value.isTensor()) {
    if (!value.toTensor().defined()) return c10::IValue();
    return meta_of(value.toTensor());
  }
  if (!holds_tensors(value)) return value;
  TensorMetas metas;
  for (const auto& item : value.toListRef())
    metas.push_back(item.isTensor() && item.toTensor().defined()
                        ? std::optional(meta_of(item.toTensor()))
                        : std::nullopt);
  return metas;
}

class Recorder {
public:
  Recorder(Graph& graph, torch::jit::Stack& stack) : graph_(graph), stack_(stack) {
    for (auto* node : graph.nodes())
      for (const auto* input : node->inputs())
        ++uses_[input];
    for (const auto* output : graph.outputs())
      ++uses_[output];
  }

  void run() {
    const auto inputs = graph_.inputs();
    const auto values = torch::jit::last(stack_, inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i)
      set(inputs[i], values[i]);
    torch::jit::Stack local;
    for (auto* node : graph_.nodes())
      run(node, local);
    torch::jit::drop(stack_, inputs.size());
    for (const auto* output : graph_.outputs())
      stack_.push_back(values_.at(output));
  }

  Record record() { return std::move(record_); }
  const std::vector<double>& seconds() const { return seconds_; }

private:
  void run(Node* node, torch::jit::Stack& local) {
    for (const auto* input : node->inputs())
      local.push_back(consume(input));
    const auto start = std::chrono::steady_clock::now();
    call_node(*node, local);
    seconds_.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    const auto outputs = node->outputs();
    for (size_t i = 0; i < outputs.size(); ++i)
      set(outputs[i], std::move(local[i]));
    local.clear();
  }

  // Return a value and release it at its last use, so that recording needs no more memory than
  // eager execution.
  c10::IValue consume(const Value* value) {
    auto& stored = values_.at(value);
    return --uses_[value] == 0 ? std::move(stored) : stored;
  }

  void set(const Value* value, c10::IValue content) {
    record_.push_back({value->debugName(), describe(content)});
    if (uses_[value] != 0) values_[value] = std::move(content);
  }

  Graph& graph_;
  torch::jit::Stack& stack_;
  std::unordered_map<const Value*, size_t> uses_;
  std::unordered_map<const Value*, c10::IValue> values_;
  Record record_;
  std::vector<double> seconds_; // by node
};

} // namespace

Record run_and_record(Graph& graph, torch::jit::Stack& stack) {
  Recorder recorder(graph, stack);
  recorder.run();
  return recorder.record();
}

std::vector<double> time_nodes(Graph& graph, torch::jit::Stack& stack) {
  Recorder recorder(graph, stack);
  recorder.run();
  return recorder.seconds();
}

} // namespace torchmdla
