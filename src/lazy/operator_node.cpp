#include "operator_node.h"

#include "base/byte_key.h"
#include "deferred/arguments.h"
#include "deferred/result_types.h"
#include "wrapped_scalars.h"

#include <torch/csrc/lazy/core/hash.h>
#include <torch/csrc/lazy/core/tensor.h>
#include <torch/csrc/lazy/core/tensor_impl.h>
#include <torch/csrc/lazy/ts_backend/ts_lowering_context.h>

#include <algorithm>

namespace torchmdla::lazy {

using torch::jit::Stack;
using torch::jit::Value;
using torch::lazy::BackendDevice;
using Argument = OperatorNode::Argument;
using Kind = OperatorNode::Argument::Kind;

OperatorNode::OperatorNode(const c10::OperatorHandle& op, std::vector<Argument> arguments,
                           const std::vector<torch::lazy::Value>& operands,
                           std::vector<torch::lazy::Shape> shapes, const std::string& key)
    : TsNode(torch::lazy::OpKind(c10::Symbol::fromQualString(op.schema().name())), operands,
             std::move(shapes), op.schema().returns().size(), torch::lazy::Hash(key)),
      arguments_(std::move(arguments)) {}

torch::lazy::TSOpVector OperatorNode::Lower(std::shared_ptr<torch::jit::GraphFunction> function,
                                            torch::lazy::TSLoweringContext* context) const {
  const auto graph = context->graph();
  const auto value_of = [&](std::optional<size_t> index) {
    return index ? context->GetOutputOp(operand(*index)) : graph->insertConstant(c10::IValue());
  };
  std::vector<Value*> inputs;
  for (const auto& argument : arguments_) {
    if (argument.kind == Kind::constant) {
      inputs.push_back(graph->insertConstant(argument.constant));
    } else if (argument.kind == Kind::tensor) {
      inputs.push_back(value_of(argument.operands[0]));
    } else {
      std::vector<Value*> elements;
      for (const auto index : argument.operands)
        elements.push_back(value_of(index));
      auto* list = graph->createList(argument.element, elements);
      inputs.push_back(graph->insertNode(list)->output());
    }
  }
  auto* node = graph->insertNode(graph->create(op().op, inputs, num_outputs()));
  return node->outputs().vec();
}

namespace {

// Add a constant to a key. Return false if a node cannot hold the value as a constant.
bool add_constant(ByteKey& key, const c10::IValue& value) {
  key.add(value.tagKind());
  if (value.isNone()) return true;
  if (value.isBool()) return key.add(value.toBool()), true;
  if (value.isInt()) return key.add(value.toInt()), true;
  if (value.isDouble()) return key.add(value.toDouble()), true;
  if (value.isComplexDouble()) return key.add(value.toComplexDouble()), true;
  if (value.isString()) return key.add(value.toStringRef()), true;
  if (value.isDevice()) return key.add(value.toDevice().str()), true;
  if (!value.isList() || value.isTensorList()) return false;
  const auto elements = value.toListRef();
  key.add(elements.size());
  return std::all_of(elements.begin(), elements.end(),
                     [&](const c10::IValue& element) { return add_constant(key, element); });
}

bool is_tensor_type(const c10::TypePtr& type) {
  return type->kind() == c10::TypeKind::TensorType;
}

// Return whether the type is a tensor or a list of tensors, including optional ones.
bool holds_tensors(const c10::TypePtr& type) {
  if (const auto optional = type->cast<c10::OptionalType>())
    return holds_tensors(optional->getElementType());
  if (const auto list = type->cast<c10::ListType>()) return holds_tensors(list->getElementType());
  return is_tensor_type(type);
}

bool is_functional(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  const auto aliases = [](const c10::Argument& argument) { return argument.alias_info(); };
  return !schema.is_vararg() && !schema.returns().empty() &&
         std::none_of(schema.arguments().begin(), schema.arguments().end(), aliases) &&
         std::all_of(schema.returns().begin(), schema.returns().end(), [](const auto& result) {
           return is_tensor_type(result.type()) && !result.alias_info();
         });
}

bool is_predictable(const c10::OperatorHandle& op) {
  // The sizes of `index` are known if the indices are not masks. Attention is called without
  // dropout here.
  const auto& name = op.operator_name().name;
  if (name == "aten::index" || name == "aten::scaled_dot_product_attention") return true;
  return !op.hasTag(at::Tag::nondeterministic_seeded) &&
         !op.hasTag(at::Tag::dynamic_output_shape) && !op.hasTag(at::Tag::data_dependent_output);
}

// Return whether a boolean is passed as a number. TorchScript's numbers exclude booleans, so such a
// call cannot become a node.
bool is_boolean_number(const c10::IValue& value, const c10::TypePtr& type) {
  const auto optional = type->cast<c10::OptionalType>();
  const auto& kind = optional ? optional->getElementType() : type;
  return value.isBool() && kind->kind() == c10::TypeKind::NumberType;
}

// Return the shapes of the results, or nullopt if the operator's meta kernel is missing or fails.
// It also fails for errors of the user.
std::optional<std::vector<torch::lazy::Shape>>
shapes_of(const c10::OperatorHandle& op, const std::vector<c10::IValue>& arguments) {
  const auto results = infer_once(infer_types, op, arguments);
  if (!results) return std::nullopt;
  std::vector<torch::lazy::Shape> shapes;
  for (const auto& result : *results) {
    if (result.defined())
      shapes.emplace_back(result.scalar_type(), result.sizes());
    else
      shapes.emplace_back(at::ScalarType::Undefined, std::vector<int64_t>());
  }
  return shapes;
}

// Arguments of one call, collected for a node.
class Recorder {
public:
  Recorder(const c10::OperatorHandle& op, BackendDevice device) : device_(std::move(device)) {
    key_.add(c10::toString(op.operator_name()));
  }

  // Add an argument. Return false if it cannot be part of a node.
  bool add(const c10::IValue& value, const c10::TypePtr& type) {
    if (is_boolean_number(value, type)) return false;
    if (!holds_tensors(type)) return add_constant(value);
    if (value.isNone()) return add_constant(value);
    if (value.isTensor()) return add_tensor(value.toTensor());
    return add_list(value, type);
  }

  std::vector<Argument> arguments;
  std::vector<torch::lazy::Value> operands;

  const std::string& key() const { return key_.bytes(); }

private:
  // Add a constant. A lazy device becomes the CPU, because graphs run on CPU tensors.
  bool add_constant(const c10::IValue& value) {
    const bool is_lazy = value.isDevice() && value.toDevice().type() == at::kLazy;
    arguments.push_back(
        {Kind::constant, is_lazy ? c10::IValue(c10::Device(at::kCPU)) : value, {}, nullptr});
    return torchmdla::lazy::add_constant(key_, arguments.back().constant);
  }

  bool add_tensor(const at::Tensor& tensor) {
    const auto index = operand(tensor);
    if (!index) return false;
    arguments.push_back({Kind::tensor, {}, {*index}, nullptr});
    return true;
  }

  bool add_list(const c10::IValue& list, const c10::TypePtr& type) {
    const auto optional = type->cast<c10::OptionalType>();
    const auto& list_type = optional ? optional->getElementType() : type;
    Argument argument{Kind::list, {}, {}, list_type->expectRef<c10::ListType>().getElementType()};
    key_.add(list.toListRef().size());
    for (const auto& element : list.toListRef()) {
      const auto index = operand(element.isNone() ? at::Tensor() : element.toTensor());
      if (!index) return false;
      argument.operands.push_back(*index);
    }
    arguments.push_back(std::move(argument));
    return true;
  }

  // Return the tensor's index among the operands; the inner optional is empty if the tensor is
  // undefined. Return nullopt for a tensor of another device, except 0-d CPU tensors.
  std::optional<std::optional<size_t>> operand(const at::Tensor& tensor) {
    key_.add(tensor.defined());
    if (!tensor.defined()) return std::optional<size_t>();
    auto lazy = torch::lazy::TryGetLtcTensor(tensor);
    if (!lazy) {
      if (tensor.dim() != 0 || !tensor.device().is_cpu()) return std::nullopt;
      lazy = torch::lazy::LazyTensor::Create(tensor, device_);
    }
    operands.push_back(lazy->GetIrValue());
    return std::optional(operands.size() - 1);
  }

  const BackendDevice device_;
  ByteKey key_;
};

} // namespace

std::optional<BackendDevice> device_of(std::span<const c10::IValue> arguments) {
  std::optional<BackendDevice> device;
  for (const auto& argument : arguments)
    for_each_tensor(argument, [&](const at::Tensor& tensor) {
      if (device) return;
      if (const auto lazy = torch::lazy::TryGetLtcTensor(tensor)) device = lazy->GetDevice();
    });
  return device;
}

bool can_record(const c10::OperatorHandle& op) {
  return is_functional(op) && is_predictable(op);
}

bool record_call(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  auto arguments = torch::jit::last(*stack, schema.arguments().size()).vec();
  const auto device = device_of(arguments);
  if (!device || !can_record(op)) return false;
  auto shapes = shapes_of(op, arguments);
  if (!shapes) return false;
  convert_wrapped_numbers(arguments);
  Recorder recorder(op, *device);
  for (size_t i = 0; i < arguments.size(); ++i)
    if (!recorder.add(arguments[i], schema.arguments()[i].type())) return false;
  const auto defined = [&](size_t i) {
    return (*shapes)[i].scalar_type() != at::ScalarType::Undefined;
  };
  std::vector<bool> results;
  for (size_t i = 0; i < shapes->size(); ++i)
    results.push_back(defined(i));
  const auto node = std::make_shared<OperatorNode>(
      op, std::move(recorder.arguments), recorder.operands, std::move(*shapes), recorder.key());
  torch::jit::drop(*stack, schema.arguments().size());
  for (size_t i = 0; i < results.size(); ++i)
    stack->emplace_back(results[i]
                            ? torch::lazy::CreateAtenFromLtcTensor(torch::lazy::LazyTensor::Create(
                                  torch::lazy::Value(node, i), *device))
                            : at::Tensor());
  return true;
}

} // namespace torchmdla::lazy
