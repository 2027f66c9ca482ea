#include "random.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/mul.h>
#include <torch/csrc/lazy/core/tensor.h>
#include <torch/library.h>

#include <array>
#include <optional>
#include <tuple>

namespace torchmdla::lazy {

using c10::DispatchKey;
using torch::jit::Stack;

namespace {

// Distributions whose first argument only determines how many numbers are drawn. The functional
// forms come first. PyTorch's factories call the in-place forms below functionalisation.
constexpr std::array<const char*, 10> fills{"aten::bernoulli.p", "aten::cauchy",
                                            "aten::exponential", "aten::geometric",
                                            "aten::log_normal",  "aten::normal_functional",
                                            "aten::random",      "aten::random.from",
                                            "aten::random.to",   "aten::uniform"};
constexpr std::array<const char*, 10> fills_in_place{
    "aten::bernoulli_.float", "aten::cauchy_", "aten::exponential_", "aten::geometric_",
    "aten::log_normal_",      "aten::normal_", "aten::random_",      "aten::random_.from",
    "aten::random_.to",       "aten::uniform_"};

// Return an empty CPU tensor with the dimension order of `tensor`, because numbers are drawn in
// memory order.
at::Tensor empty_as(const at::Tensor& tensor, at::ScalarType dtype) {
  const auto options = at::TensorOptions(at::kCPU).dtype(dtype);
  return tensor.is_non_overlapping_and_dense()
             ? at::empty_strided(tensor.sizes(), tensor.strides(), options)
             : at::empty(tensor.sizes(), options);
}

// Move numbers to the device of `beside`, a lazy tensor.
at::Tensor moved(const at::Tensor& drawn, const at::Tensor& beside) {
  const auto device = torch::lazy::TryGetLtcTensor(beside)->GetDevice();
  return torch::lazy::CreateAtenFromLtcTensor(torch::lazy::LazyTensor::Create(drawn, device));
}

// Draw into a new CPU tensor and leave the result on the stack. Return the first argument of the
// call.
at::Tensor draw(const c10::OperatorHandle& op, Stack* stack) {
  auto& first = torch::jit::peek(*stack, 0, op.schema().arguments().size());
  const auto self = first.toTensor();
  first = empty_as(self, self.scalar_type());
  op.callBoxed(stack);
  return self;
}

void fill(const c10::OperatorHandle& op, Stack* stack) {
  const auto self = draw(op, stack);
  stack->back() = moved(stack->back().toTensor(), self);
}

void fill_in_place(const c10::OperatorHandle& op, Stack* stack) {
  const auto self = draw(op, stack);
  stack->back() = self.copy_(stack->back().toTensor());
}

std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double probability,
                                                  std::optional<bool> train) {
  auto mask = empty_as(input, at::kBool);
  if (!train.value_or(true)) return {at::clone(input), moved(mask.fill_(true), input)};
  const double keep_probability = 1 - probability;
  mask = moved(mask.bernoulli_(keep_probability), input);
  return {at::mul(at::mul(input, mask), keep_probability == 0 ? 0.0 : 1 / keep_probability), mask};
}

} // namespace

void register_random() {
  static torch::Library random(torch::Library::IMPL, "aten", DispatchKey::Lazy, __FILE__, __LINE__);
  for (const auto* name : fills)
    random.impl(name, torch::CppFunction::makeFromBoxedFunction<&fill>());
  for (const auto* name : fills_in_place)
    random.impl(name, torch::CppFunction::makeFromBoxedFunction<&fill_in_place>());
  random.impl("native_dropout", &native_dropout);
}

} // namespace torchmdla::lazy
