#include "symbols.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <unordered_map>

namespace torchmdla {

namespace {

// 0 and 1 change broadcasting and strides.
constexpr int64_t least_value = 2;

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

double floor_division(double left, double right) {
  return std::floor(left / right);
}

double compute(const SizeProgram::Node& node, double left, double right) {
  using Operation = SizeProgram::Operation;
  switch (node.operation) {
  case Operation::add:
    return left + right;
  case Operation::mul:
    return left * right;
  case Operation::floor_div:
    return floor_division(left, right);
  case Operation::mod:
    return left - right * floor_division(left, right);
  case Operation::div:
    return left / right;
  case Operation::min:
    return std::min(left, right);
  case Operation::max:
    return std::max(left, right);
  case Operation::floor:
    return std::floor(left);
  case Operation::ceil:
    return std::ceil(left);
  case Operation::trunc:
    return std::trunc(left);
  case Operation::eq:
    return left == right;
  case Operation::ne:
    return left != right;
  case Operation::lt:
    return left < right;
  case Operation::le:
    return left <= right;
  case Operation::logical_and:
    return left != 0 && right != 0;
  case Operation::logical_or:
    return left != 0 || right != 0;
  case Operation::logical_not:
    return left == 0;
  case Operation::constant:
  case Operation::symbol:
    break;
  }
  return node.number;
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

std::optional<SizeProgram::Operation> SizeProgram::operation(const std::string& name) {
  static const std::unordered_map<std::string, Operation> operations{
      {"constant", Operation::constant},
      {"symbol", Operation::symbol},
      {"add", Operation::add},
      {"mul", Operation::mul},
      {"floor_div", Operation::floor_div},
      {"mod", Operation::mod},
      {"div", Operation::div},
      {"min", Operation::min},
      {"max", Operation::max},
      {"floor", Operation::floor},
      {"ceil", Operation::ceil},
      {"trunc", Operation::trunc},
      {"eq", Operation::eq},
      {"ne", Operation::ne},
      {"lt", Operation::lt},
      {"le", Operation::le},
      {"and", Operation::logical_and},
      {"or", Operation::logical_or},
      {"not", Operation::logical_not},
  };
  const auto found = operations.find(name);
  return found == operations.end() ? std::nullopt : std::optional(found->second);
}

SizeProgram::SizeProgram(std::vector<Node> nodes, std::vector<size_t> computed,
                         std::vector<size_t> conditions)
    : nodes_(std::move(nodes)), computed_(std::move(computed)), conditions_(std::move(conditions)) {
  for (size_t i = 0; i < nodes_.size(); ++i)
    TORCH_CHECK(nodes_[i].operation == Operation::constant ||
                    nodes_[i].operation == Operation::symbol ||
                    std::max(nodes_[i].left, nodes_[i].right) < i,
                "torchmdla: node ", i, " of a size program uses one behind it");
  for (const auto* numbers : {&computed_, &conditions_})
    for (const size_t number : *numbers)
      TORCH_CHECK(number < nodes_.size(), "torchmdla: a size program has no node ", number);
}

bool SizeProgram::extend(Symbols& values) const {
  c10::SmallVector<double, 128> results;
  for (const auto& node : nodes_) {
    if (node.operation == Operation::constant)
      results.push_back(node.number);
    else if (node.operation == Operation::symbol)
      results.push_back(static_cast<double>(values[static_cast<size_t>(node.number)]));
    else
      results.push_back(compute(node, results[node.left], results[node.right]));
  }
  for (const size_t number : conditions_)
    if (results[number] != 1) return false;
  for (const size_t number : computed_) {
    if (!std::isfinite(results[number])) return false;
    values.push_back(static_cast<int64_t>(results[number]));
  }
  return true;
}

} // namespace torchmdla
