#include "foreign.h"

#include "arguments.h"
#include "eager_calls.h"
#include "interceptor.h"
#include "kernel_call.h"
#include "never_destroyed.h"
#include "views.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>

namespace torchmdla::lazy {

using c10::DispatchKey;

namespace {

at::Tensor to_cpu(const at::Tensor& tensor) {
  return is_lazy(tensor) ? tensor.cpu() : tensor;
}

void run_on_cpu(const InterceptedCall& call) {
  std::optional<c10::Device> device;
  for (const auto& argument : call.arguments())
    for_each_tensor(argument, [&](const at::Tensor& tensor) {
      if (is_lazy(tensor)) device = tensor.device();
    });
  const auto& schema = call.op.schema();
  if (!device || schema.hasAnyAliasInfo()) return call.run_original();
  count_eager(call.op);
  const BelowAutograd below;
  for (auto& argument : call.arguments())
    argument =
        argument.isDevice() ? c10::IValue(c10::Device(at::kCPU)) : with_tensors(argument, &to_cpu);
  call.op.callBoxed(call.stack);
  for (auto& result : std::span(*call.stack).last(schema.returns().size()))
    result = with_tensors(result, [&](const at::Tensor& tensor) { return tensor.to(*device); });
}

// Those that write to arguments or return them are refused by functionalisation.
bool is_foreign(const c10::OperatorHandle& op) {
  static constexpr std::array<std::string_view, 4> pytorchs{"aten", "prim", "prims", "prepacked"};
  const auto space = op.operator_name().getNamespace();
  return space && std::find(pytorchs.begin(), pytorchs.end(), *space) == pytorchs.end() &&
         op.hasSchema() && !op.schema().hasAnyAliasInfo() && !op.schema().is_vararg() &&
         op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) &&
         !op.hasKernelForDispatchKey(DispatchKey::Functionalize) &&
         !op.hasKernelForDispatchKey(DispatchKey::Lazy);
}

std::atomic<bool> has_new_operators{false};

// Called with the dispatcher's lock held, so that nothing can be registered here.
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
  const std::lock_guard<std::mutex> guard(mutex);
  has_new_operators = false;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (op && is_foreign(*op)) intercept(*op, DispatchKey::Functionalize, run_on_cpu);
  }
}

void notice_new_operators() {
  if (has_new_operators.load(std::memory_order_relaxed)) register_foreign_operators();
}

} // namespace torchmdla::lazy
