#include "size_program.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory_resource>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace torchmdla {

namespace {

using Operation = SizeProgram::Operation;
using Number = SizeProgram::Number;

double real(Number number) {
  return std::visit([](auto value) { return static_cast<double>(value); }, number);
}

// Return the integer, or nullopt if it needs more than 64 bits or `value` is not a number.
std::optional<int64_t> integer(double value) {
  constexpr double beyond = 0x1p63;
  if (!(value >= -beyond && value < beyond)) return std::nullopt;
  return static_cast<int64_t>(value);
}

int64_t floor_division(int64_t left, int64_t right) {
  return left / right - (left % right != 0 && (left < 0) != (right < 0));
}

int64_t floor_remainder(int64_t left, int64_t right) {
  const auto remainder = left % right;
  return remainder != 0 && (remainder < 0) != (right < 0) ? remainder + right : remainder;
}

// Return the result of an operation that is the same for integers and doubles, else nullopt.
template <class Value>
std::optional<Number> compared(Operation operation, Value left, Value right) {
  switch (operation) {
  case Operation::min:
    return std::min(left, right);
  case Operation::max:
    return std::max(left, right);
  case Operation::eq:
    return int64_t{left == right};
  case Operation::ne:
    return int64_t{left != right};
  case Operation::lt:
    return int64_t{left < right};
  case Operation::le:
    return int64_t{left <= right};
  case Operation::logical_and:
    return int64_t{left != 0 && right != 0};
  case Operation::logical_or:
    return int64_t{left != 0 || right != 0};
  case Operation::logical_not:
    return int64_t{left == 0};
  default:
    return std::nullopt;
  }
}

// Return the result, or nullopt if it needs more than 64 bits or does not exist.
std::optional<Number> computed(Operation operation, int64_t left, int64_t right) {
  int64_t result = 0;
  const bool has_quotient =
      right != 0 && !(right == -1 && left == std::numeric_limits<int64_t>::min());
  switch (operation) {
  case Operation::add:
    return __builtin_add_overflow(left, right, &result) ? std::nullopt
                                                        : std::optional<Number>(result);
  case Operation::mul:
    return __builtin_mul_overflow(left, right, &result) ? std::nullopt
                                                        : std::optional<Number>(result);
  case Operation::floor_div:
    return has_quotient ? std::optional<Number>(floor_division(left, right)) : std::nullopt;
  case Operation::mod:
    return has_quotient ? std::optional<Number>(floor_remainder(left, right)) : std::nullopt;
  case Operation::div:
    return static_cast<double>(left) / static_cast<double>(right);
  case Operation::floor:
  case Operation::ceil:
  case Operation::trunc:
    return left;
  default:
    return compared(operation, left, right);
  }
}

std::optional<Number> computed(Operation operation, double left, double right) {
  switch (operation) {
  case Operation::add:
    return left + right;
  case Operation::mul:
    return left * right;
  case Operation::floor_div:
    return std::floor(left / right);
  case Operation::mod:
    return left - right * std::floor(left / right);
  case Operation::div:
    return left / right;
  case Operation::floor:
    return integer(std::floor(left));
  case Operation::ceil:
    return integer(std::ceil(left));
  case Operation::trunc:
    return integer(std::trunc(left));
  default:
    return compared(operation, left, right);
  }
}

std::optional<Number> computed(Operation operation, Number left, Number right) {
  const auto* one = std::get_if<int64_t>(&left);
  const auto* other = std::get_if<int64_t>(&right);
  return one && other ? computed(operation, *one, *other)
                      : computed(operation, real(left), real(right));
}

void check_program(bool is_valid, const char* reason) {
  if (!is_valid) throw std::runtime_error(std::string("torchmdla: ") + reason);
}

} // namespace

std::optional<SizeProgram::Operation> SizeProgram::operation(const std::string& name) {
  static constexpr std::string_view names[] = {
      "constant", "symbol", "add", "mul", "floor_div", "mod", "div", "min", "max", "floor",
      "ceil",     "trunc",  "eq",  "ne",  "lt",        "le",  "and", "or",  "not"};
  const auto* const match = std::ranges::find(names, name);
  if (match == std::end(names)) return std::nullopt;
  return static_cast<Operation>(match - names);
}

SizeProgram::SizeProgram(std::vector<Node> nodes, std::vector<size_t> computed,
                         std::vector<size_t> conditions)
    : nodes_(std::move(nodes)), computed_(std::move(computed)), conditions_(std::move(conditions)) {
  for (size_t i = 0; i < nodes_.size(); ++i) {
    check_program(nodes_[i].operation == Operation::constant ||
                      nodes_[i].operation == Operation::symbol ||
                      std::max(nodes_[i].left, nodes_[i].right) < i,
                  "a node of a size program uses one behind it");
    check_program(nodes_[i].operation != Operation::symbol ||
                      std::holds_alternative<int64_t>(nodes_[i].number),
                  "a node of a size program is a symbol without an integer");
  }
  for (const auto* numbers : {&computed_, &conditions_})
    for (const size_t number : *numbers)
      check_program(number < nodes_.size(), "a size program has no such node");
}

bool SizeProgram::evaluate(std::span<const int64_t> symbols, std::span<int64_t> computed) const {
  // The memory is enough for most programs, so that calls do not allocate.
  std::array<std::byte, 128 * sizeof(Number)> memory;
  std::pmr::monotonic_buffer_resource resource(memory.data(), memory.size());
  std::pmr::vector<Number> results(&resource);
  results.reserve(nodes_.size());
  for (const auto& [operation, number, left, right] : nodes_) {
    auto result = std::optional(number);
    if (operation == Operation::symbol)
      result = symbols[static_cast<size_t>(std::get<int64_t>(number))];
    else if (operation != Operation::constant)
      result = torchmdla::computed(operation, results[left], results[right]);
    if (!result) return false;
    results.push_back(*result);
  }
  for (const size_t number : conditions_)
    if (results[number] != Number(int64_t{1})) return false;
  for (size_t i = 0; i < computed_.size(); ++i) {
    const auto& result = results[computed_[i]];
    const auto* exact = std::get_if<int64_t>(&result);
    const auto whole = exact ? std::optional(*exact) : integer(std::get<double>(result));
    if (!whole) return false;
    computed[i] = *whole;
  }
  return true;
}

} // namespace torchmdla
