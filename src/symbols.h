// Sizes that vary: which numbers of a signature become symbols, inputs at other values of them, and
// the values for which a dynamic executable is known to be right.
#pragma once

#include "signature.h"

#include <ATen/core/stack.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

namespace torchmdla {

// The values of all symbols.
using Symbols = c10::SmallVector<int64_t, 8>;

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

  // The signature where the symbols have `values`.
  Signature at(const Symbols& values) const;
};

// The pattern with the most numbers that differ between `signature` and at least two `earlier`
// ones, which are equal to it in everything else, and whose places are not `refused`. Numbers below
// 2 and those that may not vary are never part of it; numbers that are equal to each other in all
// these signatures are one symbol.
std::optional<Pattern> choose_pattern(const Signature& signature, const std::vector<bool>& may_vary,
                                      c10::ArrayRef<const Signature*> earlier,
                                      const std::set<SymbolPlaces>& refused);

// The pattern with one symbol, for the numbers that are `size`: it is too long to be written out.
// Where there are none the program may have computed it from the next number, which is taken then.
std::optional<Pattern> pattern_without(int64_t size, const Signature& signature,
                                       const std::vector<bool>& may_vary,
                                       const std::set<SymbolPlaces>& refused);

// Values to learn a dynamic program from: primes, all different, near the typical ones but not
// large.
std::vector<Symbols> sample_values(const Pattern& pattern);

// Inputs like those of the typical call, where the symbols have `values`: what varies is made up of
// zeros. Throws where there is no tensor of such strides.
std::vector<c10::IValue> sample_inputs(const Pattern& pattern, const Symbols& values,
                                       c10::ArrayRef<c10::IValue> typical);

// Values for which a dynamic program is known to do what eager ops do.
//
// It was learnt from a few values. At others an op may behave differently (a slice is clamped, a
// comparison turns, a quotient rounds to another number). Such turns are monotonic in each symbol:
// values are known if for any choice of less or more, symbol by symbol, there are checked ones that
// are less or more in these symbols, or equal.
class Domain {
public:
  // Without a lock.
  bool contains(c10::ArrayRef<int64_t> values) const;

  void add(const Symbols& checked);

private:
  struct Point {
    Symbols values;
    const Point* next;
  };

  std::atomic<const Point*> newest_{nullptr};
  std::mutex mutex_;
  std::vector<std::unique_ptr<const Point>> points_; // guarded by mutex_
};

} // namespace torchmdla
