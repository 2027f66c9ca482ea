#include "packed_weights.h"

#include <ATen/Functions.h>
#include <ATen/core/ivalue_inl.h>
#include <ATen/native/quantized/PackedParams.h>
#include <torch/custom_class.h>

#include <tuple>

namespace torchmdla {

namespace {

template <class Packed> c10::intrusive_ptr<Packed> as(const c10::IValue& value) {
  const auto type = c10::getCustomClassType<c10::intrusive_ptr<Packed>>();
  return value.type()->isSubtypeOf(*type) ? value.toCustomClass<Packed>() : nullptr;
}

// Return scales and zero points along the first dimension, or nullopt for other schemes.
std::optional<std::pair<at::Tensor, at::Tensor>> parameters_of(const at::Tensor& weight) {
  if (weight.qscheme() == at::kPerChannelAffine && weight.q_per_channel_axis() == 0)
    return std::pair(weight.q_per_channel_scales().to(at::kFloat),
                     weight.q_per_channel_zero_points().to(at::kInt));
  if (weight.qscheme() != at::kPerTensorAffine) return std::nullopt;
  return std::pair(at::full({1}, weight.q_scale(), at::kFloat),
                   at::full({1}, weight.q_zero_point(), at::kInt));
}

std::optional<PackedWeights> content(std::string kind, const at::Tensor& weight,
                                     const std::optional<at::Tensor>& bias) {
  if (weight.scalar_type() != at::kQInt8) return std::nullopt;
  const auto parameters = parameters_of(weight);
  if (!parameters) return std::nullopt;
  const auto& [scales, zero_points] = *parameters;
  PackedWeights weights{std::move(kind), {}, zero_points.any().item<bool>(), bias.has_value(), {}};
  weights.tensors = {weight.int_repr(), scales};
  if (weights.has_zero_points) weights.tensors.push_back(zero_points);
  if (bias) weights.tensors.push_back(bias->detach());
  return weights;
}

template <int dimensions> std::optional<PackedWeights> convolution(const c10::IValue& value) {
  const auto packed = as<ConvPackedParamsBase<dimensions>>(value);
  if (!packed || packed->transpose()) return std::nullopt;
  const auto [weight, bias] = packed->unpack();
  auto weights = content("conv" + std::to_string(dimensions), weight, bias);
  if (!weights) return weights;
  for (const auto& numbers : {packed->stride(), packed->padding(), packed->dilation()})
    for (const int64_t number : numbers)
      weights->geometry.push_back(number);
  weights->geometry.push_back(packed->groups());
  return weights;
}

std::optional<PackedWeights> linear(const c10::IValue& value) {
  const auto packed = as<LinearPackedParamsBase>(value);
  if (!packed) return std::nullopt;
  const auto [weight, bias] = packed->unpack();
  return content("linear", weight, bias);
}

} // namespace

std::optional<PackedWeights> unpacked(const c10::IValue& value) {
  if (!value.isObject() || !value.isCustomClass()) return std::nullopt;
  for (const auto read : {linear, convolution<2>, convolution<3>})
    if (auto weights = read(value)) return weights;
  return std::nullopt;
}

} // namespace torchmdla
