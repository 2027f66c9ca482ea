#include "signature.h"

#include "base/signature_codes.h"
#include "runtime/quantisation.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/Device.h>

#include <algorithm>
#include <array>
#include <bit>

namespace torchmdla {

namespace {

using enum signature_codes::Tag;

int64_t stride_class(const at::Tensor& value) {
  if (value.is_contiguous()) return signature_codes::contiguous_class;
  return signature_codes::stride_class(value.sizes(), value.strides());
}

void append_tensor(const at::Tensor& value, Signature& signature) {
  if (const auto quantisation = quantisation_of(value))
    signature.append(
        {quantised, std::bit_cast<int64_t>(quantisation->scale), quantisation->zero_point});
  const auto dtype = static_cast<int64_t>(value.scalar_type());
  signature.push_back(tensor | dtype << 8 | value.dim() << 16);
  signature.push_back(stride_class(value));
  signature.append(value.sizes().begin(), value.sizes().end());
}

template <class List, class Code>
void append_list(const List& values, Signature& signature, Code code) {
  signature.push_back(list);
  signature.push_back(static_cast<int64_t>(values.size()));
  for (const auto& value : values)
    signature.push_back(code(value));
}

struct Product {
  at::Float32Op op;
  const char* name;
};

// Products, in the order of their bits in a signature's last entry.
constexpr std::array<Product, 3> products{{{at::Float32Op::MATMUL, "matmul"},
                                           {at::Float32Op::CONV, "conv"},
                                           {at::Float32Op::RNN, "rnn"}}};

// Position of the default dtype in a signature's last entry, above the dtype of autocast.
constexpr int default_dtype_bit = 16;

// Return the mode bits of the default dtype. They are 0 for float32, as in signatures of older
// packages.
int64_t mode_of_default_dtype() {
  const auto dtype = static_cast<int64_t>(c10::get_default_dtype_as_scalartype());
  return (dtype ^ static_cast<int64_t>(at::kFloat)) << default_dtype_bit;
}

// Number of entries before the numbers in the signature of a tensor or a list, and number of
// entries of a quantisation.
constexpr size_t entries_before_numbers = 2;
constexpr size_t entries_of_quantisation = 3;

} // namespace

bool append_signature(const c10::IValue& value, Signature& signature) {
  // The values of a list's elements are included, because compiled code has no arguments for them.
  const auto append_element = [&](const c10::IValue& element) {
    if (element.isDouble()) signature.push_back(std::bit_cast<int64_t>(element.toDouble()));
    return !element.isTensor() && !element.isTensorList() && append_signature(element, signature);
  };
  if (value.isTensor()) {
    if (value.toTensor().defined())
      append_tensor(value.toTensor(), signature);
    else
      signature.push_back(none);
  } else if (value.isNone()) {
    signature.push_back(none);
  } else if (value.isDouble()) {
    signature.push_back(floating);
  } else if (value.isInt()) {
    signature.append({integer, value.toInt()});
  } else if (value.isBool()) {
    signature.append({boolean, value.toBool()});
  } else if (value.isDevice()) {
    const auto where = value.toDevice();
    signature.append({device, static_cast<int64_t>(where.type()), where.index()});
  } else if (value.isString()) {
    const auto& text = value.toStringRef();
    append_list(text, signature, [](char c) { return static_cast<int64_t>(c); });
    signature.push_back(string);
  } else if (value.isIntList()) {
    append_list(value.toIntVector(), signature, [](int64_t v) { return v; });
  } else if (value.isBoolList()) {
    append_list(value.toBoolList().vec(), signature,
                [](bool v) { return static_cast<int64_t>(v); });
  } else if (value.isTensorList()) {
    const auto& elements = value.toListRef();
    signature.append({list, static_cast<int64_t>(elements.size())});
    for (const auto& element : elements)
      append_signature(element, signature);
  } else if (value.isDoubleList()) {
    append_list(value.toDoubleVector(), signature,
                [](double v) { return std::bit_cast<int64_t>(v); });
  } else if (value.isList()) {
    const auto elements = value.toListRef();
    signature.append({list, static_cast<int64_t>(elements.size())});
    return std::all_of(elements.begin(), elements.end(), append_element);
  } else {
    return false;
  }
  return true;
}

void append_modes(Signature& signature) {
  int64_t modes = 0;
  for (size_t i = 0; i < products.size(); ++i) {
    const auto precision =
        at::globalContext().float32Precision(at::Float32Backend::MKLDNN, products[i].op);
    modes |= static_cast<int64_t>(precision == at::Float32Precision::BF16) << i;
  }
  if (at::autocast::is_autocast_enabled(at::kCPU))
    modes |= (1 | static_cast<int64_t>(at::autocast::get_autocast_dtype(at::kCPU)) << 1)
             << products.size();
  signature.push_back(modes | mode_of_default_dtype());
}

bool has_default_dtype(const Signature& signature) {
  return (signature.back() >> default_dtype_bit) == (mode_of_default_dtype() >> default_dtype_bit);
}

std::vector<std::string> bf16_products(const Signature& signature) {
  std::vector<std::string> names;
  for (size_t i = 0; i < products.size(); ++i)
    if (signature.back() >> i & 1) names.emplace_back(products[i].name);
  return names;
}

EntryKinds entry_kinds(const c10::IValue& value) {
  Signature signature;
  append_signature(value, signature);
  EntryKinds kinds(signature.size(), EntryKind::constant);
  const auto number_from = [&](size_t first, EntryKind kind = EntryKind::number) {
    if (first < kinds.size()) std::fill(kinds.begin() + first, kinds.end(), kind);
  };
  if (value.isInt()) {
    number_from(1);
  } else if (value.isIntList()) {
    number_from(entries_before_numbers);
  } else if (value.isTensor() && value.toTensor().defined()) {
    const size_t first =
        entries_before_numbers + (quantisation_of(value.toTensor()) ? entries_of_quantisation : 0);
    kinds[first - 1] = EntryKind::strides;
    number_from(first);
    number_from(first + 1, EntryKind::inner_size);
  } else if (value.isTensorList()) {
    kinds.resize(entries_before_numbers);
    for (const auto& element : value.toListRef()) {
      const auto inner = entry_kinds(element);
      kinds.insert(kinds.end(), inner.begin(), inner.end());
    }
  }
  return kinds;
}

} // namespace torchmdla
