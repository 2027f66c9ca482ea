// PyTorch's own operators, for devices that register kernels for them.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace torchmdla {

// Call `visit(op)` for every overload that has a schema.
template <class Visit> void for_each_aten_operator(Visit visit) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.getNamespace() != "aten") continue;
    if (const auto op = dispatcher.findSchema(name)) visit(*op);
  }
}

// Return whether the operator has one of the names, which exclude the overload.
template <size_t size>
bool is_in(const std::array<std::string_view, size>& names, const c10::OperatorHandle& op) {
  return std::find(names.begin(), names.end(), op.operator_name().name) != names.end();
}

// Return whether the operator has one of the names, which include the overload.
template <size_t size>
bool is_overload_in(const std::array<std::string_view, size>& names,
                    const c10::OperatorHandle& op) {
  return std::find(names.begin(), names.end(), c10::toString(op.operator_name())) != names.end();
}

} // namespace torchmdla
