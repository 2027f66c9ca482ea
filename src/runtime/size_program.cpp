#include "size_program.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory_resource>
#include <stdexcept>
#include <unordered_map>
#include <utility>

namespace torchmdla {

namespace {

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

void check_program(bool holds, const char* reason) {
  if (!holds) throw std::runtime_error(std::string("torchmdla: ") + reason);
}

} // namespace

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
    check_program(nodes_[i].operation == Operation::constant ||
                      nodes_[i].operation == Operation::symbol ||
                      std::max(nodes_[i].left, nodes_[i].right) < i,
                  "a node of a size program uses one behind it");
  for (const auto* numbers : {&computed_, &conditions_})
    for (const size_t number : *numbers)
      check_program(number < nodes_.size(), "a size program has no such node");
}

bool SizeProgram::evaluate(std::span<const int64_t> symbols, std::span<int64_t> computed) const {
  std::array<std::byte, 128 * sizeof(double)> memory; // of most programs: calls do not allocate
  std::pmr::monotonic_buffer_resource resource(memory.data(), memory.size());
  std::pmr::vector<double> results(&resource);
  results.reserve(nodes_.size());
  for (const auto& node : nodes_) {
    if (node.operation == Operation::constant)
      results.push_back(node.number);
    else if (node.operation == Operation::symbol)
      results.push_back(static_cast<double>(symbols[static_cast<size_t>(node.number)]));
    else
      results.push_back(compute(node, results[node.left], results[node.right]));
  }
  for (const size_t number : conditions_)
    if (results[number] != 1) return false;
  for (size_t i = 0; i < computed_.size(); ++i) {
    const double result = results[computed_[i]];
    if (!std::isfinite(result)) return false;
    computed[i] = static_cast<int64_t>(result);
  }
  return true;
}

} // namespace torchmdla
