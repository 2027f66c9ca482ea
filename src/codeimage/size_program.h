// Symbols that a call computes from its sizes, and conditions on them. Needs neither torch nor
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

// Program that a call of a dynamic executable evaluates first
// (torchmdla/capture/symbolic/size_program.py). It has the conditions under which the executable is
// right, and the symbols that are computed from others. Integers are exact: if one needs more than
// 64 bits, the conditions do not hold.
class SizeProgram {
public:
  // Value of a node. A double is a quotient, or is computed from one.
  using Number = std::variant<int64_t, double>;

  // `operation` has their names in order.
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

  // Return the operation of this name in torchmdla/capture/symbolic/size_program.py, or nullopt.
  static std::optional<Operation> operation(const std::string& name);

  struct Node {
    Operation operation;
    Number number;      // the constant, or the index of the symbol
    size_t left, right; // operands, which are earlier nodes
  };

  // Construct from nodes. `computed` and `conditions` are numbers of nodes.
  SizeProgram(std::vector<Node> nodes, std::vector<size_t> computed,
              std::vector<size_t> conditions);
  SizeProgram() = default;

  // Return the number of symbols that are computed.
  size_t computed() const { return computed_.size(); }

  // Append the symbols that are computed to `values`. Return false if a condition does not hold.
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
