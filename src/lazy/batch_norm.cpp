#include "batch_norm.h"

#include "views.h"

namespace torchmdla::lazy {

namespace {

bool is_defined(const c10::IValue& tensor) {
  return !tensor.isNone() && tensor.toTensor().defined();
}

bool writes_statistics(std::span<const c10::IValue> arguments) {
  constexpr size_t input = 0, running_mean = 3, running_var = 4, training = 5;
  return is_lazy(arguments[input].toTensor()) && arguments[training].toBool() &&
         is_defined(arguments[running_mean]) && is_defined(arguments[running_var]);
}

} // namespace

Interceptor batch_norm_interceptor(const c10::OperatorHandle& op) {
  if (c10::toString(op.operator_name()) != "aten::native_batch_norm") return nullptr;
  // This operator has the same arguments, and its schema declares the writes.
  const auto writing =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::_native_batch_norm_legit", "");
  return [writing](const InterceptedCall& call) {
    if (writes_statistics(call.arguments())) return writing.redispatchBoxed(call.keys, call.stack);
    call.run_original();
  };
}

} // namespace torchmdla::lazy
