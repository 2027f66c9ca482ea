#include "byte_size.h"

#include <cctype>
#include <charconv>
#include <limits>
#include <string>
#include <system_error>

namespace torchmdla {

namespace {

// Units, in the order of their powers of 1024.
constexpr std::string_view units = "kmgt";

// Return the power of 1024 of a suffix in lower case: a unit, bytes, both or neither.
std::optional<int> power_of(std::string_view suffix) {
  int power = 0;
  if (const auto unit = suffix.empty() ? units.npos : units.find(suffix.front());
      unit != units.npos) {
    power = static_cast<int>(unit) + 1;
    suffix.remove_prefix(1);
  }
  const bool is_whole = suffix.empty() || suffix == "b" || suffix == "ib";
  return is_whole ? std::optional(power) : std::nullopt;
}

} // namespace

std::optional<int64_t> byte_size(std::string_view text) {
  std::string lower;
  for (const unsigned char c : text)
    lower += static_cast<char>(std::tolower(c));
  int64_t number = 0;
  const auto* end = lower.data() + lower.size();
  const auto [rest, error] = std::from_chars(lower.data(), end, number);
  if (error != std::errc() || number < 0) return std::nullopt;
  std::string_view suffix(rest, end);
  while (!suffix.empty() && std::isspace(static_cast<unsigned char>(suffix.front())))
    suffix.remove_prefix(1);
  const auto power = power_of(suffix);
  if (!power || number > (std::numeric_limits<int64_t>::max() >> (10 * *power)))
    return std::nullopt;
  return number << (10 * *power);
}

} // namespace torchmdla
