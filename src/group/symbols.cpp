#include "symbols.h"

#include <algorithm>
#include <cstdlib>
#include <map>

namespace torchmdla {

namespace {

// Least value of a symbol: 0 and 1 change broadcasting and strides.
constexpr int64_t least_value = 2;

using Marks = std::vector<bool>; // one for each entry of a signature

// An earlier signature and its differences.
struct Difference {
  const Signature* earlier;
  Marks marks;
};

bool may_vary(EntryKind kind) {
  return kind >= EntryKind::number;
}

enum class Strides { compared, ignored };

// Return the entries that differ, or nullopt if an entry differs that may not vary.
std::optional<Marks> differences(const Signature& signature, const Signature& earlier,
                                 const EntryKinds& kinds, Strides strides = Strides::compared) {
  if (signature.size() != earlier.size()) return std::nullopt;
  Marks marks(signature.size());
  for (size_t i = 0; i < signature.size(); ++i) {
    if (signature[i] == earlier[i]) continue;
    if (strides == Strides::ignored && kinds[i] == EntryKind::strides) continue;
    if (!may_vary(kinds[i]) || std::min(signature[i], earlier[i]) < least_value)
      return std::nullopt;
    marks[i] = true;
  }
  return marks;
}

// Return the numbers that are one more than in `earlier`. Return nullopt if they do not include an
// inner size, or if anything else but strides differs.
std::optional<Marks> growth(const Signature& signature, const Signature& earlier,
                            const EntryKinds& kinds) {
  auto marks = differences(signature, earlier, kinds, Strides::ignored);
  if (!marks) return std::nullopt;
  bool grows = false;
  for (size_t i = 0; i < signature.size(); ++i) {
    if (!(*marks)[i]) continue;
    if (signature[i] != earlier[i] + 1) return std::nullopt;
    grows |= kinds[i] == EntryKind::inner_size;
  }
  return grows ? std::move(marks) : std::nullopt;
}

bool includes(const Marks& marks, const Marks& part) {
  for (size_t i = 0; i < part.size(); ++i)
    if (part[i] && !marks[i]) return false;
  return true;
}

// Return the marks of each earlier signature and their union, those with the most marks first.
std::vector<Marks> candidates(const std::vector<Difference>& different) {
  std::vector<Marks> result;
  Marks all(different.front().marks.size());
  for (const auto& [earlier, marks] : different) {
    result.push_back(marks);
    for (size_t i = 0; i < marks.size(); ++i)
      all[i] = all[i] || marks[i];
  }
  result.push_back(std::move(all));
  std::stable_sort(result.begin(), result.end(), [](const Marks& a, const Marks& b) {
    return std::count(a.begin(), a.end(), true) > std::count(b.begin(), b.end(), true);
  });
  return result;
}

Pattern pattern_of(const Signature& signature, const Marks& marks,
                   const std::vector<const Signature*>& earlier) {
  Pattern pattern{signature, SymbolPlaces(signature.size(), fixed), 0};
  std::map<std::vector<int64_t>, int32_t> numbers;
  for (size_t i = 0; i < signature.size(); ++i) {
    if (!marks[i]) continue;
    std::vector<int64_t> values{signature[i]};
    for (const auto* other : earlier)
      values.push_back((*other)[i]);
    const auto next = static_cast<int32_t>(numbers.size());
    pattern.places[i] = numbers.emplace(std::move(values), next).first->second;
  }
  pattern.symbols = numbers.size();
  return pattern;
}

std::optional<Pattern> possible(Pattern pattern, const std::set<SymbolPlaces>& refused) {
  const bool has_symbols = pattern.symbols > 0 && pattern.symbols <= max_symbols;
  return has_symbols && !refused.count(pattern.places) ? std::optional(std::move(pattern))
                                                       : std::nullopt;
}

} // namespace

bool Pattern::covers(const Signature& signature, Symbols& values) const {
  if (signature.size() != typical.size()) return false;
  values.assign(symbols, 0);
  for (size_t i = 0; i < signature.size(); ++i) {
    if (places[i] == fixed) {
      if (signature[i] != typical[i]) return false;
      continue;
    }
    auto& value = values[places[i]];
    if (value == 0) value = signature[i];
    if (value != signature[i] || value < least_value) return false;
  }
  return true;
}

Symbols Pattern::typical_values() const {
  Symbols values;
  covers(typical, values);
  return values;
}

std::optional<Pattern> choose_pattern(const Signature& signature, const EntryKinds& kinds,
                                      c10::ArrayRef<const Signature*> earlier,
                                      const std::set<SymbolPlaces>& refused) {
  std::vector<Difference> different;
  for (const auto* other : earlier)
    if (auto marks = differences(signature, *other, kinds))
      different.push_back({other, std::move(*marks)});
  if (different.size() < 2) return std::nullopt;
  for (const auto& marks : candidates(different)) {
    std::vector<const Signature*> alike;
    for (const auto& [other, where] : different)
      if (includes(marks, where)) alike.push_back(other);
    if (alike.size() < 2) continue;
    if (auto pattern = possible(pattern_of(signature, marks, alike), refused)) return pattern;
  }
  return std::nullopt;
}

std::optional<Pattern> pattern_of_growth(const Signature& signature, const EntryKinds& kinds,
                                         c10::ArrayRef<const Signature*> earlier,
                                         const std::set<SymbolPlaces>& refused) {
  for (const auto* other : earlier)
    if (const auto marks = growth(signature, *other, kinds))
      if (auto pattern = possible(pattern_of(signature, *marks, {other}), refused)) return pattern;
  return std::nullopt;
}

std::optional<Pattern> pattern_of_varying(const Signature& signature, const EntryKinds& kinds,
                                          const std::set<SymbolPlaces>& refused) {
  Marks marks(signature.size());
  for (size_t i = 0; i < marks.size(); ++i)
    marks[i] = kinds[i] == EntryKind::varying_number && signature[i] >= least_value;
  return possible(pattern_of(signature, marks, {}), refused);
}

std::optional<Pattern> pattern_without(int64_t size, const Signature& signature,
                                       const EntryKinds& kinds,
                                       const std::set<SymbolPlaces>& refused) {
  std::optional<int64_t> nearest;
  for (size_t i = 0; i < signature.size(); ++i)
    if (may_vary(kinds[i]) && signature[i] >= least_value &&
        (!nearest || std::abs(signature[i] - size) < std::abs(*nearest - size)))
      nearest = signature[i];
  if (!nearest) return std::nullopt;
  Pattern pattern{signature, SymbolPlaces(signature.size(), fixed), 1, /*written_out=*/true};
  for (size_t i = 0; i < signature.size(); ++i)
    if (may_vary(kinds[i]) && signature[i] == *nearest) pattern.places[i] = 0;
  return refused.count(pattern.places) ? std::nullopt : std::optional(std::move(pattern));
}

} // namespace torchmdla
