#include "polynomial.h"

namespace torchmdla {

int64_t Polynomial::at(std::span<const int64_t> symbols) const {
  int64_t sum = 0;
  for (const auto& [exponents, factor] : terms) {
    int64_t product = factor;
    for (size_t i = 0; i < exponents.size(); ++i)
      for (int64_t power = 0; power < exponents[i]; ++power)
        product *= symbols[i];
    sum += product;
  }
  return sum;
}

} // namespace torchmdla
