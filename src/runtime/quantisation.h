// Quantisation parameters of tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/QScheme.h>

#include <cstdint>
#include <optional>

namespace torchmdla {

// Parameters of a tensor that is quantised as a whole. A value is (integer - zero_point) * scale.
struct Quantisation {
  double scale;
  int64_t zero_point;
};

// Return the parameters, or nullopt if the tensor is not quantised as a whole.
inline std::optional<Quantisation> quantisation_of(const at::Tensor& tensor) {
  if (!tensor.is_quantized() || tensor.qscheme() != at::kPerTensorAffine) return std::nullopt;
  return Quantisation{tensor.q_scale(), tensor.q_zero_point()};
}

} // namespace torchmdla
