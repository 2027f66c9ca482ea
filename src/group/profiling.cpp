#include "profiling.h"

#include "base/forks.h"

#include <torch/csrc/jit/runtime/graph_executor.h>

#include <algorithm>
#include <cstddef>

namespace torchmdla {

namespace {

struct Profiling {
  std::mutex mutex; // guards the members below
  bool is_disabled = false;
  size_t num_users = 0;
  size_t default_runs = 0; // the number to restore, while profiling is left out

  void apply() const {
    torch::jit::getNumProfiledRuns() = num_users != 0 ? std::max<size_t>(default_runs, 1) : 0;
  }
};

Profiling& profiling() {
  static Profiling instance;
  return instance;
}

void add_users(int change) {
  auto& state = profiling();
  const ForkSafeLock guard(state.mutex);
  state.num_users += change;
  if (state.is_disabled) state.apply();
}

} // namespace

void leave_out_profiling(bool leave_out) {
  auto& state = profiling();
  const ForkSafeLock guard(state.mutex);
  if (leave_out == state.is_disabled) return;
  state.is_disabled = leave_out;
  if (!leave_out) {
    torch::jit::getNumProfiledRuns() = state.default_runs;
    return;
  }
  state.default_runs = torch::jit::getNumProfiledRuns();
  state.apply();
}

WithProfiling::WithProfiling() {
  add_users(1);
}

WithProfiling::~WithProfiling() {
  add_users(-1);
}

} // namespace torchmdla
