#include "polynomial.h"

namespace torchmdla {

int64_t Polynomial::at(std::span<const int64_t> symbols) const {
  uint64_t sum = 0; // wraps, as TorchScript's integers do
  for (const auto& [exponents, factor] : terms) {
    auto product = static_cast<uint64_t>(factor);
    for (size_t i = 0; i < exponents.size(); ++i)
      for (int64_t power = 0; power < exponents[i]; ++power)
        product *= static_cast<uint64_t>(symbols[i]);
    sum += product;
  }
  return static_cast<int64_t>(sum);
}

} // namespace torchmdla
