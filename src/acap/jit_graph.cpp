#include "jit_graph.h"

#include "base/forks.h"
#include "base/never_destroyed.h"
#include "deferred/canonical.h"
#include "fusion/fusion_pass.h"
#include "operators.h"
#include "structural_hash.h"

#include <torch/csrc/jit/runtime/operator.h>

#include <algorithm>
#include <optional>
#include <unordered_map>

namespace torchmdla::acap {

using torch::jit::Graph;

namespace {

// A graph and the tensors for its inputs.
struct LoweredGraph {
  std::shared_ptr<Graph> graph;
  std::vector<c10::IValue> inputs;
};

c10::TypePtr type_of(const at::Tensor& tensor) {
  const c10::VaryingShape<c10::Stride> strides(static_cast<size_t>(tensor.dim()));
  return c10::TensorType::create(tensor.scalar_type(), c10::Device(c10::kCPU),
                                 c10::SymbolicShape(tensor.sizes()), strides,
                                 /*requires_grad=*/false);
}

// Return whether an overload of `op` has a list of tensors without None as this argument.
// TorchScript has such an overload of most ops.
bool takes_list_of_tensors(c10::Symbol op, size_t argument) {
  const auto& overloads = torch::jit::getAllOperatorsFor(op);
  return std::any_of(overloads.begin(), overloads.end(), [&](const auto& overload) {
    const auto& arguments = overload->schema().arguments();
    return argument < arguments.size() &&
           c10::ListType::ofTensors()->isSubtypeOf(*arguments[argument].type());
  });
}

class GraphWriter {
public:
  GraphWriter(bool as_recorded, bool argument_per_use)
      : graph_(std::make_shared<Graph>()), as_recorded_(as_recorded),
        argument_per_use_(argument_per_use) {}

  void add(Node& node) {
    std::vector<torch::jit::Value*> inputs;
    const auto op = as_recorded_ ? node.op : for_any_strides(node.op);
    const auto name = c10::Symbol::fromQualString(op.operator_name().name);
    for (size_t i = 0; i < node.operands.size(); ++i)
      inputs.push_back(operand_value(name, i, node.operands[i]));
    auto* call = graph_->appendNode(graph_->create(name, inputs, /*num_outputs=*/0));
    add_results(node, call);
  }

  torch::jit::Value* value_of(const ValuePtr& value) {
    if (const auto entry = values_.find(value.get()); entry != values_.end()) return entry->second;
    TORCH_INTERNAL_ASSERT(!value->node, "an operand comes after its user");
    auto* input = graph_->addInput()->setType(type_of(value->meta));
    inputs_.emplace_back(value->tensor);
    if (!argument_per_use_) values_[value.get()] = input;
    return input;
  }

  LoweredGraph finish(const std::vector<ValuePtr>& outputs) {
    for (const auto& output : outputs)
      graph_->registerOutput(value_of(output));
    return {std::move(graph_), std::move(inputs_)};
  }

private:
  torch::jit::Value* operand_value(c10::Symbol op, size_t argument, const Operand& operand) {
    if (const auto* constant = std::get_if<c10::IValue>(&operand))
      return graph_->insertConstant(*constant);
    if (const auto* value = std::get_if<ValuePtr>(&operand)) return value_of(*value);
    const auto& elements = std::get<std::vector<ValuePtr>>(operand);
    std::vector<torch::jit::Value*> values;
    bool has_none = false;
    for (const auto& element : elements) {
      has_none |= !element;
      values.push_back(element ? value_of(element) : graph_->insertConstant(c10::IValue()));
    }
    const c10::TypePtr type = has_none || !takes_list_of_tensors(op, argument)
                                  ? c10::TypePtr(c10::OptionalType::ofTensor())
                                  : c10::TypePtr(c10::TensorType::get());
    return graph_->insertNode(graph_->createList(type, values))->output();
  }

  // Define the results of `node`. A schema's results are tensors and lists of tensors.
  void add_results(Node& node, torch::jit::Node* call) {
    size_t next = 0;
    const auto& returns = node.op.schema().returns();
    for (const auto& returned : returns) {
      if (returned.type()->kind() != c10::TypeKind::ListType) {
        define(node, next++, call->addOutput());
        continue;
      }
      // A list is the only result then; see `has_recordable_results`.
      auto* list = call->addOutput()->setType(c10::ListType::ofTensors());
      auto* unpack = graph_->insertNode(graph_->createListUnpack(list, node.results.size()));
      for (auto* element : unpack->outputs())
        define(node, next++, element);
    }
  }

  void define(const Node& node, size_t index, torch::jit::Value* output) {
    const auto& meta = node.metas[index];
    output->setType(meta.defined() ? type_of(meta) : c10::TypePtr(c10::TensorType::get()));
    if (const auto value = node.results[index].lock()) values_[value.get()] = output;
  }

  std::shared_ptr<Graph> graph_;
  const bool as_recorded_;
  const bool argument_per_use_;
  std::unordered_map<const Value*, torch::jit::Value*> values_;
  std::vector<c10::IValue> inputs_;
};

// Return `nodes` as typed ATen calls; each computed value is one input. Views that rely on strides
// become reshapes, because a result may have other strides at run time.
LoweredGraph lower(const std::vector<Node*>& nodes, const std::vector<ValuePtr>& outputs) {
  GraphWriter writer(/*as_recorded=*/false, /*argument_per_use=*/false);
  for (auto* node : nodes)
    writer.add(*node);
  auto lowered = writer.finish(outputs);
  make_canonical(lowered.graph);
  return lowered;
}

std::optional<GraphRunner>& runner() {
  static NeverDestroyed<std::optional<GraphRunner>> instance; // groups hold Python objects
  return *instance;
}

std::vector<at::Tensor> tensors_of(torch::jit::Stack values) {
  std::vector<at::Tensor> tensors;
  for (auto& value : values)
    tensors.push_back(std::move(value).toTensor());
  return tensors;
}

} // namespace

void run_on_device(const std::string& device) {
  runner().emplace(acap_group_symbol(), device);
}

Runnable prepare(const std::vector<Node*>& nodes, const std::vector<ValuePtr>& outputs) {
  // Plans by structure key. The plan's floats are those of the structure, in its order. Guarded by
  // graph_mutex().
  using Plans = std::unordered_map<std::string, std::shared_ptr<GraphRunner::Plan>>;
  static NeverDestroyed<Plans> plans;
  auto structure = structure_of(nodes, outputs);
  if (const auto entry = plans->find(structure.key); entry != plans->end())
    return {{entry->second, std::move(structure.floats)}, std::move(structure.inputs), nullptr};
  auto lowered = lower(nodes, outputs);
  auto prepared = runner()->prepare(lowered.graph);
  std::shared_ptr<const void> evicted;
  if (!structure.key.empty() && prepared.floats == structure.floats) {
    if (plans->size() >= GraphRunner::most_plans)
      evicted = std::make_shared<Plans>(std::exchange(*plans, {}));
    plans->emplace(std::move(structure.key), prepared.plan);
  }
  return {std::move(prepared), std::move(lowered.inputs), std::move(evicted)};
}

std::vector<at::Tensor> run(const Runnable& runnable) {
  return tensors_of(GraphRunner::run(runnable.prepared, runnable.inputs));
}

std::shared_ptr<Graph> describe(const std::vector<ValuePtr>& values, bool argument_per_use) {
  const ForkSafeLock guard(graph_mutex());
  GraphWriter writer(/*as_recorded=*/true, argument_per_use);
  for (auto* node : pending_nodes_of(values))
    writer.add(*node);
  return writer.finish(values).graph;
}

} // namespace torchmdla::acap
