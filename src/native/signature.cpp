#include "signature.h"

#include "base/signature_codes.h"

#include <algorithm>
#include <bit>

namespace torchmdla::native {

namespace {

using signature_codes::Tag;

// Sizes of 0 and 1 are never symbols, because they change broadcasting and strides.
constexpr int64_t least_symbol = 2;

int64_t stride_class(const Tensor& value) {
  if (value.is_contiguous()) return signature_codes::contiguous_class;
  return signature_codes::stride_class(value.sizes(), value.strides());
}

// Comparison of values with consecutive entries of a signature.
class Comparison {
public:
  Comparison(const Specialisation& specialisation, Strides strides, Dimensions& symbols)
      : signature_(specialisation.signature), places_(specialisation.places), strides_(strides),
        symbols_(symbols) {
    symbols_.resize(0);
    symbols_.resize(specialisation.symbols);
  }

  bool at_end() const { return next_ == signature_.size(); }

  bool accepts(const Value& value) {
    switch (value.kind()) {
    case Kind::none:
      return takes(Tag::none);
    case Kind::tensor:
      return accepts_tensor(value.tensor());
    case Kind::real:
      return takes(Tag::floating);
    case Kind::integer:
      return takes(Tag::integer) && takes(value.integer());
    case Kind::boolean:
      return takes(Tag::boolean) && takes(int64_t{value.boolean()});
    case Kind::device:
      return takes(Tag::device) && takes(0) && takes(-1);
    case Kind::string:
      return accepts_text(value.text());
    case Kind::list:
      return accepts_list(value.items());
    default:
      return false;
    }
  }

private:
  bool takes(int64_t number) {
    if (at_end()) return false;
    const auto place = places_.empty() ? Specialisation::fixed : places_[next_];
    const auto expected = signature_[next_++];
    if (place == Specialisation::fixed) return number == expected;
    auto& value = symbols_[static_cast<size_t>(place)];
    if (value == 0) value = number;
    return value == number && number >= least_symbol;
  }

  bool accepts_tensor(const Tensor& value) {
    const auto head = Tag::tensor | int64_t{value.dtype} << 8 | int64_t{value.rank} << 16;
    if (!takes(head) || at_end()) return false;
    if (strides_ == Strides::compared ? !takes(stride_class(value)) : false) return false;
    if (strides_ == Strides::ignored) ++next_;
    return std::ranges::all_of(value.sizes(), [&](int64_t size) { return takes(size); });
  }

  bool accepts_text(std::string_view text) {
    return takes(Tag::list) && takes(static_cast<int64_t>(text.size())) &&
           std::ranges::all_of(text, [&](char c) { return takes(static_cast<int64_t>(c)); }) &&
           takes(Tag::string);
  }

  bool accepts_list(std::span<const Value> items) {
    return takes(Tag::list) && takes(static_cast<int64_t>(items.size())) &&
           std::ranges::all_of(items, [&](const Value& item) { return accepts_item(item); });
  }

  // Numbers of lists are not tagged: a list has elements of one type.
  bool accepts_item(const Value& item) {
    switch (item.kind()) {
    case Kind::integer:
      return takes(item.integer());
    case Kind::boolean:
      return takes(int64_t{item.boolean()});
    case Kind::real:
      return takes(std::bit_cast<int64_t>(item.real()));
    case Kind::list:
    case Kind::tuple:
      return false;
    default:
      return accepts(item);
    }
  }

  std::span<const int64_t> signature_, places_;
  const Strides strides_;
  Dimensions& symbols_;
  size_t next_ = 0;
};

std::string tensor_text(int64_t dtype, std::span<const int64_t> sizes) {
  return dtype_name(dtype) + " " + sizes_text(sizes);
}

std::string value_text(const Value& value) {
  switch (value.kind()) {
  case Kind::tensor:
    return tensor_text(value.tensor().dtype, value.tensor().sizes());
  case Kind::integer:
    return std::to_string(value.integer());
  case Kind::boolean:
    return value.boolean() ? "True" : "False";
  case Kind::list: {
    std::string text;
    for (const auto& item : value.items())
      text += (text.empty() ? "" : ", ") + value_text(item);
    return "[" + text + "]";
  }
  default:
    return std::string(kind_name(value.kind()));
  }
}

} // namespace

bool covers(const Specialisation& specialisation, Inputs inputs, Strides strides,
            Dimensions& symbols) {
  Comparison comparison(specialisation, strides, symbols);
  return std::ranges::all_of(inputs,
                             [&](const Value* input) { return comparison.accepts(*input); }) &&
         comparison.at_end() && (!specialisation.sizes || specialisation.sizes->extend(symbols));
}

std::string signature_text(Inputs inputs) {
  std::string text;
  for (const auto* const input : inputs)
    text += (text.empty() ? "" : ", ") + value_text(*input);
  return text;
}

std::string signature_text(const Specialisation& specialisation) {
  const auto& numbers = specialisation.signature;
  const auto is_symbol = [&](size_t place) {
    return !specialisation.places.empty() && specialisation.places[place] != Specialisation::fixed;
  };
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    text += text.empty() ? "" : ", ";
    const auto kind = numbers[i] & 0xff, dtype = numbers[i] >> 8 & 0xff;
    const auto rank = static_cast<size_t>(numbers[i] >> 16), left = numbers.size() - i;
    if (kind == Tag::tensor && left >= 2 && rank <= left - 2 && rank <= dimension_limit) {
      Dimensions sizes;
      for (size_t k = i + 2; k < i + 2 + rank; ++k)
        sizes.push_back(is_symbol(k) ? -1 : numbers[k]);
      text += tensor_text(dtype, sizes);
      i += 2 + rank;
    } else if ((kind == Tag::integer || kind == Tag::boolean) && left >= 2) {
      text += is_symbol(i + 1)       ? "?"
              : kind == Tag::integer ? std::to_string(numbers[i + 1])
              : numbers[i + 1]       ? "True"
                                     : "False";
      i += 2;
    } else if (kind == Tag::none || kind == Tag::floating) {
      text += kind == Tag::none ? "None" : "float";
      ++i;
    } else {
      return text + "…"; // lists and strings
    }
  }
  return text;
}

} // namespace torchmdla::native
