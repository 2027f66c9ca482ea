// Iteration over the tensors among an operator's arguments and results.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

namespace torchmdla {

// TorchScript's lists of optional tensors have a type of their own, which IValue's test of the
// pointer does not recognise.
inline bool is_list_of_optional_tensors(const c10::IValue& value) {
  if (!value.isList() || value.isTensorList()) return false;
  const auto type = value.toList().elementType();
  const auto* optional = type->castRaw<c10::OptionalType>();
  return optional && optional->getElementType()->kind() == c10::TypeKind::TensorType;
}

inline bool is_list_of_tensors(const c10::IValue& value) {
  return value.isTensorList() || is_list_of_optional_tensors(value);
}

template <class Visit> void for_each_tensor(const c10::IValue& value, Visit visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (is_list_of_tensors(value)) {
    for (const auto& element : value.toListRef())
      if (element.isTensor() && element.toTensor().defined()) visit(element.toTensor());
  }
}

// Return `value` with every tensor replaced by `change(tensor)`.
template <class Change> c10::IValue with_tensors(const c10::IValue& value, Change change) {
  const auto changed = [&](const c10::IValue& element) -> c10::IValue {
    if (!element.isTensor() || !element.toTensor().defined()) return element;
    return change(element.toTensor());
  };
  if (!is_list_of_tensors(value)) return changed(value);
  c10::impl::GenericList list(value.toList().elementType());
  for (const auto& element : value.toListRef())
    list.push_back(changed(element));
  return list;
}

} // namespace torchmdla
