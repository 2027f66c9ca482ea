#include "foreign.h"

#include "arguments.h"
#include "eager_calls.h"
#include "kernel_call.h"
#include "never_destroyed.h"
#include "views.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace torchmdla::lazy {

using c10::DispatchKey;
using torch::jit::Stack;

namespace {

class CpuCall : public c10::OperatorKernel {
public:
  explicit CpuCall(const c10::OperatorHandle& op)
      : original_(op.getComputedKernelForDispatchKey(DispatchKey::Functionalize)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const auto count = op.schema().arguments().size();
    std::optional<c10::Device> device;
    for (const auto& argument : torch::jit::last(*stack, count))
      for_each_tensor(argument, [&](const at::Tensor& tensor) {
        if (is_lazy(tensor)) device = tensor.device();
      });
    if (!device || op.schema().hasAnyAliasInfo()) return original_.callBoxed(op, keys, stack);
    count_eager(op);
    const BelowAutograd below;
    const auto arguments = torch::jit::pop(*stack, count);
    for (const auto& argument : arguments)
      stack->push_back(argument.isDevice() ? c10::IValue(c10::Device(at::kCPU))
                                           : with_tensors(argument, &to_cpu));
    op.callBoxed(stack);
    for (const auto& result : torch::jit::pop(*stack, op.schema().returns().size()))
      stack->push_back(
          with_tensors(result, [&](const at::Tensor& tensor) { return tensor.to(*device); }));
  }

private:
  static at::Tensor to_cpu(const at::Tensor& tensor) {
    return is_lazy(tensor) ? tensor.cpu() : tensor;
  }

  const c10::SafeKernelFunction original_;
};

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
  static NeverDestroyed<std::vector<c10::RegistrationHandleRAII>> registered;
  const std::lock_guard<std::mutex> guard(mutex);
  has_new_operators = false;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op || !is_foreign(*op)) continue;
    auto kernel = c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<CpuCall>(*op));
    registered->push_back(dispatcher.registerImpl(name, DispatchKey::Functionalize,
                                                  std::move(kernel), std::nullopt, nullptr,
                                                  "torchmdla's lazy device"));
  }
}

void notice_new_operators() {
  if (has_new_operators.load(std::memory_order_relaxed)) register_foreign_operators();
}

} // namespace torchmdla::lazy
