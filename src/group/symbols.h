// Sizes that vary: the numbers of a signature that become symbols, and the values that a call
// computes from them.
#pragma once

#include "codeimage/size_program.h"
#include "signature.h"

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <optional>
#include <set>
#include <vector>

namespace torchmdla {

// The values of all symbols.
using Symbols = c10::SmallVector<int64_t, 32>;

// Number of the symbol of each entry of a signature, or `fixed`.
using SymbolPlaces = std::vector<int32_t>;
constexpr int32_t fixed = -1;

// Maximum number of symbols of a pattern.
constexpr size_t max_symbols = 4;

// The signatures that one dynamic specialisation covers.
struct Pattern {
  Signature typical; // the call that it was made for
  SymbolPlaces places;
  size_t symbols;
  bool written_out = false; // programs grow with the symbols, so samples are small

  // Return whether all fixed entries are equal, equal symbols have equal values, and all symbols
  // are at least 2. Set `values` to the values of the symbols.
  bool covers(const Signature& signature, Symbols& values) const;

  Symbols typical_values() const;
};

// Return the pattern with the most numbers that differ between `signature` and at least two
// `earlier` ones. These must equal it in everything else. Numbers below 2 are never part of a
// pattern. Numbers that equal each other in all these signatures are one symbol. Patterns whose
// places are `refused` are not chosen.
std::optional<Pattern> choose_pattern(const Signature& signature, const EntryKinds& kinds,
                                      c10::ArrayRef<const Signature*> earlier,
                                      const std::set<SymbolPlaces>& refused);

// Return the pattern of the numbers that are one more than in an `earlier` signature. One of them
// must be an inner size, and only strides may differ otherwise. A cache grows with each token, and
// the first cache is often a view.
std::optional<Pattern> pattern_of_growth(const Signature& signature, const EntryKinds& kinds,
                                         c10::ArrayRef<const Signature*> earlier,
                                         const std::set<SymbolPlaces>& refused);

// Return the pattern whose symbols are the numbers known to vary. Equal numbers are one symbol.
std::optional<Pattern> pattern_of_varying(const Signature& signature, const EntryKinds& kinds,
                                          const std::set<SymbolPlaces>& refused);

// Return the pattern with one symbol for the numbers that equal `size`, which is too large to
// unroll. If no number does, the program may have computed it from the nearest number, which is
// used instead.
std::optional<Pattern> pattern_without(int64_t size, const Signature& signature,
                                       const EntryKinds& kinds,
                                       const std::set<SymbolPlaces>& refused);

} // namespace torchmdla
