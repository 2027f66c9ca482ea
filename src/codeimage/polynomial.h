// A number that depends on the sizes of a call. Needs neither torch nor Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace torchmdla {

// A sum of products of the symbols, with integer coefficients (torchmdla/compiler/sizes.py).
struct Polynomial {
  struct Term {
    std::vector<int64_t> exponents; // one for each symbol
    int64_t factor;
  };
  std::vector<Term> terms;

  int64_t at(std::span<const int64_t> symbols) const;
};

// Polynomials of the numbers that depend on the sizes of a call, by the numbers' places.
using Varying = std::vector<std::pair<size_t, Polynomial>>;

} // namespace torchmdla
