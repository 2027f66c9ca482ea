// Sizes that a call computes of its own, and what must hold of them. Needs neither torch nor
// Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace torchmdla {

// What a call of a dynamic executable evaluates first: the conditions under which the executable is
// right, and symbols that are computed from others (torchmdla/capture/size_program.py). Integers
// are exact: where one needs more than 64 bits no condition holds.
class SizeProgram {
public:
  // A double is a quotient, or what is computed with one.
  using Number = std::variant<int64_t, double>;

  enum class Operation {
    constant,
    symbol,
    add,
    mul,
    floor_div,
    mod,
    div,
    min,
    max,
    floor,
    ceil,
    trunc,
    eq,
    ne,
    lt,
    le,
    logical_and,
    logical_or,
    logical_not,
  };

  // By its name in torchmdla/capture/size_program.py; nullopt where there is none.
  static std::optional<Operation> operation(const std::string& name);

  struct Node {
    Operation operation;
    Number number;      // of a constant, or an integer: which symbol
    size_t left, right; // operands, which come before
  };

  // `computed` and `conditions` are numbers of nodes.
  SizeProgram(std::vector<Node> nodes, std::vector<size_t> computed,
              std::vector<size_t> conditions);
  SizeProgram() = default;

  // How many symbols are computed.
  size_t computed() const { return computed_.size(); }

  // Appends the symbols that are computed to `values`; false where a condition does not hold.
  template <class Values> bool extend(Values& values) const {
    const size_t given = values.size();
    values.resize(given + computed_.size());
    const std::span<int64_t> all(values.data(), values.size());
    return evaluate(all.first(given), all.subspan(given));
  }

private:
  bool evaluate(std::span<const int64_t> symbols, std::span<int64_t> computed) const;

  std::vector<Node> nodes_;
  std::vector<size_t> computed_, conditions_;
};

} // namespace torchmdla
