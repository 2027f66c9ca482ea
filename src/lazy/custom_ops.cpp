#include "custom_ops.h"

#include "base/forks.h"
#include "base/never_destroyed.h"
#include "deferred/arguments.h"
#include "deferred/kernel_call.h"
#include "eager_calls.h"
#include "interceptor.h"
#include "views.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

namespace torchmdla::lazy {

using c10::DispatchKey;

namespace {

at::Tensor to_cpu(const at::Tensor& tensor) {
  return is_lazy(tensor) ? tensor.cpu() : tensor;
}

std::optional<c10::Device> device_of(const InterceptedCall& call) {
  std::optional<c10::Device> device;
  for (const auto& argument : call.arguments())
    for_each_tensor(argument, [&](const at::Tensor& tensor) {
      if (is_lazy(tensor)) device = tensor.device();
    });
  return device;
}

void run_on_cpu(const InterceptedCall& call) {
  const auto device = device_of(call);
  if (!device) return call.run_original();
  const auto& schema = call.op.schema();
  count_eager(call.op);
  const BelowAutograd below;
  for (auto& argument : call.arguments())
    argument =
        argument.isDevice() ? c10::IValue(c10::Device(at::kCPU)) : with_tensors(argument, &to_cpu);
  call.op.callBoxed(call.stack);
  for (auto& result : std::span(*call.stack).last(schema.returns().size()))
    result = with_tensors(result, [&](const at::Tensor& tensor) { return tensor.to(*device); });
}

// Run the composite kernel, so that functionalisation processes each of its operators.
void decompose(const InterceptedCall& call) {
  if (!device_of(call)) return call.run_original();
  call.op.callBoxedForDispatchKey(DispatchKey::CompositeExplicitAutograd, *call.stack);
}

// Return whether PyTorch would run the operator's only kernel below functionalisation.
bool is_composite(const c10::OperatorHandle& op) {
  return op.hasSchema() && !op.schema().is_vararg() &&
         op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) &&
         !op.hasKernelForDispatchKey(DispatchKey::Functionalize) &&
         !op.hasKernelForDispatchKey(DispatchKey::Lazy);
}

// Return the interceptor of `op`, or null if PyTorch's behaviour is correct. It is also null for
// foreign operators that write to arguments or return them, because functionalisation rejects
// these.
Interceptor interceptor_of(const c10::OperatorHandle& op) {
  static constexpr std::array<std::string_view, 3> pytorchs{"aten", "prim", "prepacked"};
  const auto space = op.operator_name().getNamespace();
  if (!space || !is_composite(op)) return {};
  if (*space == "prims") return decompose;
  const bool is_foreign = std::find(pytorchs.begin(), pytorchs.end(), *space) == pytorchs.end();
  return is_foreign && !op.schema().hasAnyAliasInfo() ? run_on_cpu : Interceptor();
}

std::atomic<bool> has_new_operators{false};

// Listener for new operators. The dispatcher holds its lock during these calls, so nothing can be
// registered in them.
class Listener : public c10::OpRegistrationListener {
public:
  void onOperatorRegistered(const c10::OperatorHandle&) override { has_new_operators = true; }
  void onOperatorDeregistered(const c10::OperatorHandle&) override {}
};

} // namespace

void register_foreign_operators() {
  static const NeverDestroyed<c10::RegistrationHandleRAII> listening(
      c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<Listener>()));
  static std::mutex mutex;
  const ForkSafeLock guard(mutex);
  has_new_operators = false;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op) continue;
    if (auto interceptor = interceptor_of(*op))
      intercept(*op, DispatchKey::Functionalize, std::move(interceptor));
  }
}

void notice_new_operators() {
  if (has_new_operators.load(std::memory_order_relaxed)) register_foreign_operators();
}

} // namespace torchmdla::lazy
