#include "eager_replay.h"

#include "base/forks.h"
#include "deferred/plain_modes.h"
#include "operators.h"

#include <ATen/core/List.h>
#include <ATen/core/stack.h>

#include <optional>
#include <unordered_map>

namespace torchmdla::acap {

namespace {

bool takes_undefined_elements(const c10::Argument& argument) {
  const auto list = argument.type()->cast<c10::ListType>();
  return list && list->getElementType()->kind() == c10::TypeKind::OptionalType;
}

class OpByOpExecutor {
public:
  explicit OpByOpExecutor(const std::vector<Node*>& nodes) {
    const ForkSafeLock guard(graph_mutex());
    for (const auto* node : nodes)
      node->for_each_input([&](const ValuePtr& value) {
        if (!value->node) tensors_.emplace(value.get(), value->tensor);
      });
  }

  void run(const Node& node) {
    torch::jit::Stack stack;
    const auto& arguments = node.op.schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i)
      stack.push_back(argument(arguments[i], node.operands[i]));
    for_any_strides(node.op).callBoxed(stack);
    define_results(node, stack);
  }

  const at::Tensor& tensor_of(const ValuePtr& value) const { return tensors_.at(value.get()); }

private:
  c10::IValue argument(const c10::Argument& declared, const Operand& operand) const {
    if (const auto* constant = std::get_if<c10::IValue>(&operand)) return *constant;
    if (const auto* value = std::get_if<ValuePtr>(&operand)) return tensor_of(*value);
    const auto& elements = std::get<std::vector<ValuePtr>>(operand);
    if (takes_undefined_elements(declared)) return list_of<std::optional<at::Tensor>>(elements);
    return list_of<at::Tensor>(elements);
  }

  template <class Element> c10::List<Element> list_of(const std::vector<ValuePtr>& values) const {
    c10::List<Element> list;
    for (const auto& value : values)
      list.push_back(value ? Element(tensor_of(value)) : Element());
    return list;
  }

  void define_results(const Node& node, const torch::jit::Stack& returned) {
    size_t next = 0;
    const auto define = [&](const at::Tensor& tensor) {
      if (const auto value = node.results.at(next++).lock()) tensors_[value.get()] = tensor;
    };
    for (const auto& result : returned) {
      if (result.isTensor())
        define(result.toTensor());
      else
        for (const at::Tensor& element : result.toTensorVector())
          define(element);
    }
  }

  std::unordered_map<const Value*, at::Tensor> tensors_;
};

} // namespace

std::vector<at::Tensor> run_op_by_op(const std::vector<Node*>& nodes,
                                     const std::vector<ValuePtr>& outputs) {
  const PlainModes modes;
  OpByOpExecutor executor(nodes);
  for (const auto* node : nodes)
    executor.run(*node);
  std::vector<at::Tensor> tensors;
  for (const auto& output : outputs)
    tensors.push_back(executor.tensor_of(output));
  return tensors;
}

} // namespace torchmdla::acap
