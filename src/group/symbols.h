// Sizes that vary: which numbers of a signature become symbols, and what a call computes of them.
#pragma once

#include "runtime/size_program.h"
#include "signature.h"

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <optional>
#include <set>
#include <vector>

namespace torchmdla {

// The values of all symbols.
using Symbols = c10::SmallVector<int64_t, 32>;

// For each entry of a signature the number of its symbol, or `fixed`.
using SymbolPlaces = std::vector<int32_t>;
constexpr int32_t fixed = -1;

// A pattern with more is not chosen.
constexpr size_t most_symbols = 4;

// The signatures that one dynamic specialisation takes.
struct Pattern {
  Signature typical; // of the call that it was made for
  SymbolPlaces places;
  size_t symbols;
  bool written_out = false; // programs grow with the symbols: samples are the least there are

  // Whether everything that does not vary is equal, equal symbols have equal values, and all are at
  // least 2; `values` are then those of the symbols.
  bool covers(const Signature& signature, Symbols& values) const;

  Symbols typical_values() const;
};

// The pattern with the most numbers that differ between `signature` and at least two `earlier`
// ones, which are equal to it in everything else. Numbers below 2 are never part of a pattern;
// numbers that are equal to each other in all these signatures are one symbol. Patterns whose
// places are `refused` are not chosen.
std::optional<Pattern> choose_pattern(const Signature& signature, const EntryKinds& kinds,
                                      c10::ArrayRef<const Signature*> earlier,
                                      const std::set<SymbolPlaces>& refused);

// The pattern of the numbers that are one more than in an `earlier` signature, inner sizes among
// them, where nothing else differs but strides: a cache grows with each token, and the first one is
// often a view.
std::optional<Pattern> pattern_of_growth(const Signature& signature, const EntryKinds& kinds,
                                         c10::ArrayRef<const Signature*> earlier,
                                         const std::set<SymbolPlaces>& refused);

// The pattern whose symbols are the numbers that are known to vary; equal numbers are one symbol.
std::optional<Pattern> pattern_of_varying(const Signature& signature, const EntryKinds& kinds,
                                          const std::set<SymbolPlaces>& refused);

// The pattern with one symbol, for the numbers that are `size`: it is too long to be written out.
// Where there are none the program may have computed it from the next number, which is taken then.
std::optional<Pattern> pattern_without(int64_t size, const Signature& signature,
                                       const EntryKinds& kinds,
                                       const std::set<SymbolPlaces>& refused);

} // namespace torchmdla
