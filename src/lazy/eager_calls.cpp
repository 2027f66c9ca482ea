#include "eager_calls.h"

#include "base/forks.h"

#include <torch/csrc/lazy/core/metrics.h>

#include <map>
#include <mutex>
#include <string>

namespace torchmdla::lazy {

void count_eager(const c10::OperatorHandle& op) {
  static std::mutex mutex;
  static std::map<std::string, torch::lazy::Counter> counters; // guarded by mutex
  const auto name = c10::toString(op.operator_name());
  const ForkSafeLock guard(mutex);
  counters.try_emplace(name, name).first->second.AddValue(1);
}

} // namespace torchmdla::lazy
