// A number that depends on the sizes of a call.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <vector>

namespace torchmdla {

// A sum of products of the symbols, with integer coefficients (torchmdla/compiler/sizes.py).
struct Polynomial {
  struct Term {
    std::vector<int64_t> exponents; // of all symbols
    int64_t factor;
  };
  std::vector<Term> terms;

  int64_t at(c10::ArrayRef<int64_t> symbols) const;
};

} // namespace torchmdla
