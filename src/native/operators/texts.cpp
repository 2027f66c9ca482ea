// Operators on strings. Strings are bytes of UTF-8, and indices count bytes. Results are those of
// torchmdla/script/strings.py.

#include "texts.h"

#include "operators.h"
#include "sequences.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <vector>

namespace torchmdla::native {

namespace {

constexpr std::string_view blanks = " \t\n\r\v\f";

void append_integer(Text& text, int64_t number) {
  char digits[24];
  const auto end = std::to_chars(digits, std::end(digits), number).ptr;
  text += std::string_view(digits, static_cast<size_t>(end - digits));
}

void append_real(Text& text, double number) {
  char digits[40];
  if (std::isfinite(number) && std::fabs(number) < 1e10 && number == std::trunc(number))
    std::snprintf(digits, sizeof digits, "%.0f.", number);
  else
    std::snprintf(digits, sizeof digits, "%.17g", number);
  text += digits;
}

void append_items(Text& text, std::span<const Value> items) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) text += ", ";
    append_text(text, items[i]);
  }
}

void append_dict(Text& text, const List& dict) {
  text += '{';
  for (size_t i = 0; i < dict.size; i += 2) {
    if (i > 0) text += ", ";
    append_text(text, dict.items[i]);
    text += ": ";
    append_text(text, dict.items[i + 1]);
  }
  text += '}';
}

void set_text(const OperatorCall& call, std::string_view text) {
  call.set(new_string(call.arena, text));
}

void format(const OperatorCall& call) {
  const auto pattern = call[0].text();
  Text text(call.arena);
  size_t begin = 0, next = 1;
  while (true) {
    const auto place = pattern.find("{}", begin);
    text += pattern.substr(begin, place == pattern.npos ? pattern.npos : place - begin);
    if (place == pattern.npos) break;
    if (next == call.count()) fail("Too few arguments for format string: " + std::string(pattern));
    append_text(text, call[next++]);
    begin = place + 2;
  }
  set_text(call, text.view());
}

void to_text(const OperatorCall& call) {
  Text text(call.arena);
  append_text(text, call[0]);
  set_text(call, text.view());
}

void concatenate(const OperatorCall& call) {
  Text text(call.arena);
  text += call[0].text();
  text += call[1].text();
  set_text(call, text.view());
}

template <bool expected> void compare_equal(const OperatorCall& call) {
  call.set((call[0].text() == call[1].text()) == expected);
}

template <class Compare> void compare(const OperatorCall& call) {
  call.set(Compare()(call[0].text(), call[1].text()));
}

void length(const OperatorCall& call) {
  call.set(static_cast<int64_t>(call[0].text().size()));
}

void get_item(const OperatorCall& call) {
  const auto text = call[0].text();
  const auto place = place_of(call[1].integer(), text.size());
  if (!place) fail("string index out of range");
  set_text(call, text.substr(*place, 1));
}

void slice(const OperatorCall& call) {
  const auto text = call[0].text();
  const Slice slice(call, text.size());
  Text result(call.arena);
  for (size_t i = 0; i < slice.count; ++i)
    result += text[slice.at(i)];
  set_text(call, result.view());
}

void join(const OperatorCall& call) {
  Text text(call.arena);
  const auto items = call[1].items();
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) text += call[0].text();
    text += items[i].text();
  }
  set_text(call, text.view());
}

void split(const OperatorCall& call) {
  auto list = new_list(call.arena, 0);
  auto text = call[0].text();
  const auto add = [&](std::string_view part) {
    append(list.list(), new_string(call.arena, part));
  };
  if (call[1].is_none()) {
    while (true) {
      const auto begin = std::min(text.find_first_not_of(blanks), text.size());
      text.remove_prefix(begin);
      if (text.empty()) break;
      const auto end = std::min(text.find_first_of(blanks), text.size());
      add(text.substr(0, end));
      text.remove_prefix(end);
    }
  } else {
    const auto separator = call[1].text();
    if (separator.empty()) fail("ValueError: empty separator");
    auto most = call.integer(2, -1);
    for (size_t place; most-- != 0 && (place = text.find(separator)) != text.npos;) {
      add(text.substr(0, place));
      text.remove_prefix(place + separator.size());
    }
    add(text);
  }
  call.set(std::move(list));
}

template <int convert(int)> void convert_letters(const OperatorCall& call) {
  Text text(call.arena);
  for (const auto letter : call[0].text())
    text += letter < 0 ? letter : static_cast<char>(convert(letter));
  set_text(call, text.view());
}

int to_lower(int letter) {
  return letter >= 'A' && letter <= 'Z' ? letter + ('a' - 'A') : letter;
}
int to_upper(int letter) {
  return letter >= 'a' && letter <= 'z' ? letter - ('a' - 'A') : letter;
}

template <bool left, bool right> void strip(const OperatorCall& call) {
  auto text = call[0].text();
  const auto letters = call.count() > 1 ? call[1].text() : blanks;
  if (left) text.remove_prefix(std::min(text.find_first_not_of(letters), text.size()));
  if (right) text = text.substr(0, text.find_last_not_of(letters) + 1);
  set_text(call, text);
}

template <bool at_end> void starts(const OperatorCall& call) {
  auto text = call[0].text();
  const auto size = static_cast<int64_t>(text.size());
  auto begin = call.integer(2, 0), end = call.integer(3, -1);
  if (begin < 0) begin = std::max<int64_t>(begin + size, 0);
  if (end < 0) end = std::max<int64_t>(end + size + 1, 0);
  if (begin > size) {
    call.set(false);
    return;
  }
  text = text.substr(static_cast<size_t>(begin),
                     static_cast<size_t>(std::max<int64_t>(end - begin, 0)));
  call.set(at_end ? text.ends_with(call[1].text()) : text.starts_with(call[1].text()));
}

void replace(const OperatorCall& call) {
  auto text = call[0].text();
  const auto old = call[1].text(), fresh = call[2].text();
  auto most = call.integer(3, -1);
  Text result(call.arena);
  if (old.empty()) fail("str.replace needs a part that is not empty");
  for (size_t place; most-- != 0 && (place = text.find(old)) != text.npos;) {
    result += text.substr(0, place);
    result += fresh;
    text.remove_prefix(place + old.size());
  }
  result += text;
  set_text(call, result.view());
}

template <class Number> Number parse(std::string_view text, const char* kind) {
  const auto begin = std::min(text.find_first_not_of(blanks), text.size());
  auto digits = text.substr(begin);
  if (digits.starts_with('+')) digits.remove_prefix(1);
  Number number{};
  const auto* const end = digits.data() + digits.size();
  const auto [rest, error] = std::from_chars(digits.data(), end, number);
  if (error != std::errc() || rest != end)
    fail(std::string(kind) + ": '" + std::string(text) + "'");
  return number;
}

void parse_int(const OperatorCall& call) {
  call.set(parse<int64_t>(call[0].text(), "invalid literal for int() with base 10"));
}

void parse_float(const OperatorCall& call) {
  call.set(parse<double>(call[0].text(), "could not convert string to float"));
}

} // namespace

Text& Text::operator+=(std::string_view more) {
  if (size_ + more.size() > capacity_) {
    const auto capacity = std::max(2 * capacity_, size_ + more.size());
    auto* const data = static_cast<char*>(arena_.allocate(capacity));
    std::copy_n(data_, size_, data);
    if (data_) arena_.release(data_, capacity_);
    data_ = data;
    capacity_ = capacity;
  }
  more.copy(data_ + size_, more.size());
  size_ += more.size();
  return *this;
}

void append_text(Text& text, const Value& value) {
  switch (value.kind()) {
  case Kind::none:
    text += "None";
    break;
  case Kind::boolean:
    text += value.boolean() ? "True" : "False";
    break;
  case Kind::integer:
    append_integer(text, value.integer());
    break;
  case Kind::real:
    append_real(text, value.real());
    break;
  case Kind::device:
    text += "cpu";
    break;
  case Kind::string:
    text += value.text();
    break;
  case Kind::list:
    text += '[';
    append_items(text, value.items());
    text += ']';
    break;
  case Kind::tuple:
    text += '(';
    append_items(text, value.items());
    text += value.items().size() == 1 ? ",)" : ")";
    break;
  case Kind::dict:
    append_dict(text, value.dict());
    break;
  default:
    fail("a " + std::string(kind_name(value.kind())) + " has no text outside of PyTorch");
  }
}

std::span<const Operator> text_operators() {
  static const std::vector<Operator> table{
      {"aten::format", 1, Operator::any, 1, format},
      {"aten::str", 1, 1, 1, to_text},
      {"aten::add.str", 2, 2, 1, concatenate},
      {"aten::eq.str", 2, 2, 1, compare_equal<true>},
      {"aten::ne.str", 2, 2, 1, compare_equal<false>},
      {"aten::lt.str", 2, 2, 1, compare<std::less<>>},
      {"aten::gt.str", 2, 2, 1, compare<std::greater<>>},
      {"aten::le.str", 2, 2, 1, compare<std::less_equal<>>},
      {"aten::ge.str", 2, 2, 1, compare<std::greater_equal<>>},
      {"aten::len.str", 1, 1, 1, length},
      {"aten::__getitem__.str", 2, 2, 1, get_item},
      {"aten::slice.str", 4, 4, 1, slice},
      {"aten::join", 2, 2, 1, join},
      {"aten::split.str", 3, 3, 1, split},
      {"aten::lower", 1, 1, 1, convert_letters<to_lower>},
      {"aten::upper", 1, 1, 1, convert_letters<to_upper>},
      {"aten::strip", 2, 2, 1, strip<true, true>},
      {"aten::lstrip", 2, 2, 1, strip<true, false>},
      {"aten::rstrip", 2, 2, 1, strip<false, true>},
      {"aten::startswith", 4, 4, 1, starts<false>},
      {"aten::endswith", 4, 4, 1, starts<true>},
      {"aten::replace", 4, 4, 1, replace},
      {"aten::Int.str", 1, 1, 1, parse_int},
      {"aten::Float.str", 1, 1, 1, parse_float},
  };
  return table;
}

} // namespace torchmdla::native
