// What the integers of a quantised tensor stand for.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/QScheme.h>

#include <cstdint>
#include <optional>

namespace torchmdla {

// (integer - zero_point) * scale, of a tensor that is quantised as a whole.
struct Quantisation {
  double scale;
  int64_t zero_point;
};

// None of a tensor that is not quantised, or in parts.
inline std::optional<Quantisation> quantisation_of(const at::Tensor& tensor) {
  if (!tensor.is_quantized() || tensor.qscheme() != at::kPerTensorAffine) return std::nullopt;
  return Quantisation{tensor.q_scale(), tensor.q_zero_point()};
}

} // namespace torchmdla
