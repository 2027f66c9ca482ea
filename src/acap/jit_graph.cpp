#include "jit_graph.h"

#include "fusion_pass.h"
#include "graph_runner.h"
#include "lazy/canonical.h"
#include "record.h"

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <optional>
#include <unordered_map>

namespace torchmdla::acap {

using torch::jit::Graph;
namespace prim = c10::prim;

namespace {

c10::TypePtr type_of(const at::Tensor& tensor) {
  const c10::VaryingShape<c10::Stride> strides(static_cast<size_t>(tensor.dim()));
  return c10::TensorType::create(tensor.scalar_type(), c10::Device(c10::kCPU),
                                 c10::SymbolicShape(tensor.sizes()), strides,
                                 /*requires_grad=*/false);
}

// Ops that promise what only the strides at the time of recording allow.
const std::unordered_map<std::string, std::string>& without_strides() {
  static const std::unordered_map<std::string, std::string> names{
      {"aten::view", "aten::reshape"}, {"aten::_unsafe_view", "aten::reshape"}};
  return names;
}

class Writer {
public:
  Writer(bool as_recorded, bool argument_per_use)
      : graph_(std::make_shared<Graph>()), as_recorded_(as_recorded),
        argument_per_use_(argument_per_use) {}

  void add(Node& node) {
    std::vector<torch::jit::Value*> inputs;
    for (const auto& operand : node.operands)
      inputs.push_back(operand_value(operand));
    auto* call = graph_->appendNode(
        graph_->create(c10::Symbol::fromQualString(name_of(node)), inputs, /*num_outputs=*/0));
    add_results(node, call);
  }

  torch::jit::Value* value_of(const ValuePtr& value) {
    if (const auto found = values_.find(value.get()); found != values_.end()) return found->second;
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
  std::string name_of(const Node& node) const {
    const auto& name = node.op.operator_name().name;
    const auto& names = without_strides();
    const auto found = as_recorded_ ? names.end() : names.find(name);
    return found == names.end() ? name : found->second;
  }

  torch::jit::Value* operand_value(const Operand& operand) {
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
    const c10::TypePtr type =
        has_none ? c10::TypePtr(c10::OptionalType::ofTensor()) : c10::TypePtr(c10::TensorType::get());
    return graph_->insertNode(graph_->createList(type, values))->output();
  }

  // A schema's results are tensors and lists of tensors.
  void add_results(Node& node, torch::jit::Node* call) {
    size_t next = 0;
    const auto& returns = node.op.schema().returns();
    for (const auto& returned : returns) {
      if (returned.type()->kind() != c10::TypeKind::ListType) {
        define(node, next++, call->addOutput());
        continue;
      }
      // The only one then, see `is_recordable`.
      auto* list = call->addOutput()->setType(c10::ListType::ofTensors());
      auto* unpack = graph_->insertNode(graph_->createListUnpack(list, node.results.size()));
      for (auto* element : unpack->outputs())
        define(node, next++, element);
    }
  }

  void define(const Node& node, size_t index, torch::jit::Value* made) {
    const auto value = node.results[index].lock();
    if (!value) {
      made->setType(c10::TensorType::get());
      return;
    }
    made->setType(type_of(value->meta));
    values_[value.get()] = made;
  }

  std::shared_ptr<Graph> graph_;
  const bool as_recorded_;
  const bool argument_per_use_;
  std::unordered_map<const Value*, torch::jit::Value*> values_;
  std::vector<c10::IValue> inputs_;
};

} // namespace

LoweredGraph lower(const std::vector<Node*>& nodes, const std::vector<ValuePtr>& outputs) {
  Writer writer(/*as_recorded=*/false, /*argument_per_use=*/false);
  for (auto* node : nodes)
    writer.add(*node);
  auto lowered = writer.finish(outputs);
  lazy::make_canonical(lowered.graph);
  return lowered;
}

namespace {

std::optional<GraphRunner>& runner() {
  static auto* instance = new std::optional<GraphRunner>(); // its groups hold Python objects
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

std::vector<at::Tensor> run(const LoweredGraph& lowered) {
  try {
    return tensors_of(GraphRunner::run(runner()->prepare(lowered.graph), lowered.inputs));
  } catch (const c10::Error&) {
    // Op by op, the error is the failing op's own, not the interpreter's.
  } catch (const std::runtime_error&) {
  }
  const c10::InferenceMode inference(false);
  const c10::AutoGradMode no_grad(false);
  auto stack = lowered.inputs;
  run_and_record(*lowered.graph, stack);
  return tensors_of(std::move(stack));
}

std::shared_ptr<Graph> describe(const ValuePtr& value, bool argument_per_use) {
  const std::lock_guard<std::mutex> guard(graph_mutex());
  Writer writer(/*as_recorded=*/true, argument_per_use);
  for (auto* node : pending_nodes_of({value}))
    writer.add(*node);
  return writer.finish({value}).graph;
}

} // namespace torchmdla::acap
