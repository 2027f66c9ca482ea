#include "wrapped_scalars.h"

#include "deferred/arguments.h"
#include "operator_node.h"

#include <ATen/native/TypeProperties.h>
#include <torch/csrc/lazy/core/tensor.h>

#include <algorithm>
#include <vector>

namespace torchmdla::lazy {

namespace {

bool is_number(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() &&
         value.toTensor().unsafeGetTensorImpl()->is_wrapped_number();
}

// Return the dtype for the numbers among the arguments. Beside a tensor with dimensions, a number
// is wider than the promoted dtype. The operator then decides whether to round it, wrap it around,
// or divide by its exact value.
at::ScalarType dtype_of_numbers(std::span<const c10::IValue> arguments) {
  at::native::ResultTypeState state;
  for (const auto& argument : arguments)
    for_each_tensor(argument, [&](const at::Tensor& tensor) {
      state = at::native::update_result_type_state(tensor, state);
    });
  const auto promoted = at::native::result_type(state);
  if (at::isReducedFloatingType(state.dimResult)) return at::kFloat;
  const bool has_dimensions = state.dimResult != at::ScalarType::Undefined;
  return has_dimensions && at::isIntegralType(promoted, /*includeBool=*/false) ? at::kLong
                                                                               : promoted;
}

} // namespace

void convert_wrapped_numbers(std::span<c10::IValue> arguments) {
  if (std::none_of(arguments.begin(), arguments.end(), is_number)) return;
  const auto dtype = dtype_of_numbers(arguments);
  for (auto& argument : arguments)
    if (is_number(argument)) argument = argument.toTensor().to(dtype);
}

namespace {

// Convert the numbers and move them to the device of the other tensors. PyTorch only accepts CPU
// tensors as numbers in their original form.
void move_numbers_to_device(std::span<c10::IValue> arguments) {
  std::vector<bool> are_numbers;
  for (const auto& argument : arguments)
    are_numbers.push_back(is_number(argument));
  convert_wrapped_numbers(arguments);
  const auto device = device_of(arguments);
  if (!device) return;
  for (size_t i = 0; i < arguments.size(); ++i)
    if (are_numbers[i])
      arguments[i] = torch::lazy::CreateAtenFromLtcTensor(
          torch::lazy::LazyTensor::Create(arguments[i].toTensor(), *device));
}

void run_with_numbers(const InterceptedCall& call) {
  const auto arguments = call.arguments();
  if (std::any_of(arguments.begin(), arguments.end(), is_number)) move_numbers_to_device(arguments);
  call.run_original();
}

// Return whether `op` may promote a number, which requires at least two tensor arguments.
bool may_promote(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  const auto is_tensor = [](const c10::Argument& argument) {
    return argument.type()->kind() == c10::TypeKind::TensorType && !argument.alias_info();
  };
  return std::count_if(arguments.begin(), arguments.end(), is_tensor) >= 2;
}

} // namespace

Interceptor number_interceptor(const c10::OperatorHandle& op) {
  const bool is_needed = op.hasKernelForDispatchKey(c10::DispatchKey::Lazy) && may_promote(op);
  return is_needed ? run_with_numbers : Interceptor();
}

} // namespace torchmdla::lazy
