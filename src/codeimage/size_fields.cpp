#include "size_fields.h"

#include <algorithm>
#include <utility>

namespace torchmdla {

namespace {

SizeProgram::Number read_number(ByteReader& reader) {
  if (reader.truth()) return reader.real();
  return reader.integer();
}

} // namespace

Polynomial read_polynomial(ByteReader& reader, size_t symbols) {
  constexpr int64_t max_exponent = 64;
  return {reader.list([&] {
    Polynomial::Term term{reader.integers(), reader.integer()};
    const bool is_power = std::ranges::all_of(
        term.exponents, [](int64_t power) { return power >= 0 && power <= max_exponent; });
    if (term.exponents.size() > symbols || !is_power)
      throw BadBytes("a size varies with an unknown symbol");
    return term;
  })};
}

Varying read_varying(ByteReader& reader, size_t count, size_t symbols) {
  return reader.list([&] {
    const auto place = reader.count();
    if (place >= count) throw BadBytes("an unknown size varies");
    return std::pair(place, read_polynomial(reader, symbols));
  });
}

SizeProgram read_size_program(ByteReader& reader, size_t symbols) {
  size_t known = 0;
  auto nodes = reader.list([&] {
    const auto name = reader.text();
    const auto operation = SizeProgram::operation(name);
    if (!operation) throw BadBytes("no size is computed by " + name);
    SizeProgram::Node node{*operation, read_number(reader), 0, 0};
    node.left = reader.count();
    node.right = reader.count();
    const bool is_symbol = *operation == SizeProgram::Operation::symbol;
    const bool is_leaf = is_symbol || *operation == SizeProgram::Operation::constant;
    const auto* place = std::get_if<int64_t>(&node.number);
    if (is_symbol && !(place && *place >= 0 && std::cmp_less(*place, symbols)))
      throw BadBytes("a size is computed from an unknown symbol");
    if (!is_leaf && std::max(node.left, node.right) >= known)
      throw BadBytes("a size is computed of a later one");
    ++known;
    return node;
  });
  const auto numbers = [&] {
    auto read = reader.counts();
    if (std::ranges::any_of(read, [&](size_t node) { return node >= known; }))
      throw BadBytes("an unknown size is computed");
    return read;
  };
  auto computed = numbers();
  return {std::move(nodes), std::move(computed), numbers()};
}

} // namespace torchmdla
