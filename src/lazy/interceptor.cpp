#include "interceptor.h"

#include "base/forks.h"
#include "base/never_destroyed.h"

#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace torchmdla::lazy {

using torch::jit::Stack;

namespace {

class Kernel : public c10::OperatorKernel {
public:
  Kernel(const c10::OperatorHandle& op, c10::DispatchKey key, Interceptor interceptor)
      : original_(op.getComputedKernelForDispatchKey(key)), interceptor_(std::move(interceptor)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    interceptor_({op, original_, keys, stack});
  }

private:
  const c10::SafeKernelFunction original_;
  const Interceptor interceptor_;
};

} // namespace

std::span<c10::IValue> InterceptedCall::arguments() const {
  return std::span(*stack).last(op.schema().arguments().size());
}

void intercept(const c10::OperatorHandle& op, c10::DispatchKey key, Interceptor interceptor) {
  static std::mutex mutex;
  static NeverDestroyed<std::vector<c10::RegistrationHandleRAII>> registered; // guarded by mutex
  auto kernel = std::make_unique<Kernel>(op, key, std::move(interceptor));
  const ForkSafeLock guard(mutex);
  registered->push_back(c10::Dispatcher::singleton().registerImpl(
      op.operator_name(), key, c10::KernelFunction::makeFromBoxedFunctor(std::move(kernel)),
      /*cpp_signature=*/std::nullopt, /*inferred_function_schema=*/nullptr,
      "torchmdla's lazy device"));
}

} // namespace torchmdla::lazy
