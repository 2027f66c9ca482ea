#include "symbols.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <map>

namespace torchmdla {

namespace {

// 0 and 1 change broadcasting and strides.
constexpr int64_t least_value = 2;

constexpr size_t samples = 5;
constexpr int64_t least_sample = 11, largest_first_sample = 61;

using Marks = std::vector<bool>; // of the entries of a signature

// An earlier signature and where it differs.
struct Difference {
  const Signature* earlier;
  Marks marks;
};

// Where the two differ; nullopt if they do in anything that may not vary.
std::optional<Marks> differences(const Signature& signature, const Signature& earlier,
                                 const Marks& may_vary) {
  if (signature.size() != earlier.size()) return std::nullopt;
  Marks marks(signature.size());
  for (size_t i = 0; i < signature.size(); ++i) {
    if (signature[i] == earlier[i]) continue;
    if (!may_vary[i] || std::min(signature[i], earlier[i]) < least_value) return std::nullopt;
    marks[i] = true;
  }
  return marks;
}

bool includes(const Marks& marks, const Marks& part) {
  for (size_t i = 0; i < part.size(); ++i)
    if (part[i] && !marks[i]) return false;
  return true;
}

// What differs from some earlier signature, and from any of them; the most marks first.
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

bool is_prime(int64_t number) {
  for (int64_t divisor = 2; divisor * divisor <= number; ++divisor)
    if (number % divisor == 0) return false;
  return true;
}

// A set of directions from one point to others: direction d goes up in the symbols that are bits of
// d, down in the others.
using Directions = uint64_t;

// Those in which `to` lies; several where numbers are equal.
Directions directions(c10::ArrayRef<int64_t> from, c10::ArrayRef<int64_t> to) {
  Directions result = 1;
  for (size_t i = 0; i < from.size(); ++i)
    result = (to[i] <= from[i] ? result : 0) | (to[i] >= from[i] ? result << (1 << i) : 0);
  return result;
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

Signature Pattern::at(const Symbols& values) const {
  auto signature = typical;
  for (size_t i = 0; i < signature.size(); ++i)
    if (places[i] != fixed) signature[i] = values[places[i]];
  return signature;
}

std::optional<Pattern> choose_pattern(const Signature& signature, const Marks& may_vary,
                                      c10::ArrayRef<const Signature*> earlier,
                                      const std::set<SymbolPlaces>& refused) {
  std::vector<Difference> different;
  for (const auto* other : earlier)
    if (auto marks = differences(signature, *other, may_vary))
      different.push_back({other, std::move(*marks)});
  if (different.size() < 2) return std::nullopt;
  for (const auto& marks : candidates(different)) {
    std::vector<const Signature*> alike;
    for (const auto& [other, where] : different)
      if (includes(marks, where)) alike.push_back(other);
    if (alike.size() < 2) continue;
    auto pattern = pattern_of(signature, marks, alike);
    if (pattern.symbols <= most_symbols && !refused.count(pattern.places)) return pattern;
  }
  return std::nullopt;
}

std::optional<Pattern> pattern_without(int64_t size, const Signature& signature,
                                       const Marks& may_vary,
                                       const std::set<SymbolPlaces>& refused) {
  std::optional<int64_t> nearest;
  for (size_t i = 0; i < signature.size(); ++i)
    if (may_vary[i] && signature[i] >= least_value &&
        (!nearest || std::abs(signature[i] - size) < std::abs(*nearest - size)))
      nearest = signature[i];
  if (!nearest) return std::nullopt;
  Pattern pattern{signature, SymbolPlaces(signature.size(), fixed), 1, /*written_out=*/true};
  for (size_t i = 0; i < signature.size(); ++i)
    if (may_vary[i] && signature[i] == *nearest) pattern.places[i] = 0;
  return refused.count(pattern.places) ? std::nullopt : std::optional(std::move(pattern));
}

std::vector<Symbols> sample_values(const Pattern& pattern) {
  // Sizes that do not vary are no samples either: nothing must be equal by chance.
  std::set<int64_t> taken(pattern.typical.begin(), pattern.typical.end());
  std::vector<Symbols> result(samples, Symbols(pattern.symbols));
  const auto typical = pattern.typical_values();
  for (size_t symbol = 0; symbol < pattern.symbols; ++symbol) {
    auto value = pattern.written_out
                     ? least_sample
                     : std::clamp(typical[symbol], least_sample, largest_first_sample);
    for (auto& sample : result) {
      while (!is_prime(value) || taken.count(value))
        ++value;
      taken.insert(value);
      sample[symbol] = value;
    }
  }
  return result;
}

std::vector<c10::IValue> sample_inputs(const Pattern& pattern, const Symbols& values,
                                       c10::ArrayRef<c10::IValue> typical) {
  const auto wanted = pattern.at(values);
  c10::ArrayRef<int64_t> rest = wanted;
  Signature made;
  std::vector<c10::IValue> inputs;
  for (const auto& input : typical) {
    inputs.push_back(with_numbers(input, rest));
    append_signature(inputs.back(), made);
  }
  TORCH_CHECK(made == wanted, "an input's strides cannot be had at other sizes");
  return inputs;
}

bool Domain::contains(c10::ArrayRef<int64_t> values) const {
  const Directions all = (Directions(1) << (1 << values.size())) - 1;
  Directions found = 0;
  for (const auto* point = newest_.load(std::memory_order_acquire); point && found != all;
       point = point->next)
    found |= directions(values, point->values);
  return found == all;
}

void Domain::add(const Symbols& checked) {
  std::lock_guard<std::mutex> guard(mutex_);
  if (contains(checked)) return;
  points_.push_back(
      std::make_unique<const Point>(Point{checked, newest_.load(std::memory_order_relaxed)}));
  newest_.store(points_.back().get(), std::memory_order_release);
}

} // namespace torchmdla
