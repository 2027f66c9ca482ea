#include "profiling.h"

#include "support/forks.h"

#include <torch/csrc/jit/runtime/graph_executor.h>

#include <algorithm>
#include <cstddef>

namespace torchmdla {

namespace {

struct Profiling {
  std::mutex mutex; // guards the members below
  bool left_out = false;
  size_t needed = 0;
  size_t usual_runs = 0; // the number to restore, while profiling is left out

  void apply() const {
    torch::jit::getNumProfiledRuns() = needed != 0 ? std::max<size_t>(usual_runs, 1) : 0;
  }
};

Profiling& profiling() {
  static Profiling instance;
  return instance;
}

void need(int change) {
  auto& state = profiling();
  const Guard guard(state.mutex);
  state.needed += change;
  if (state.left_out) state.apply();
}

} // namespace

void leave_out_profiling(bool leave_out) {
  auto& state = profiling();
  const Guard guard(state.mutex);
  if (leave_out == state.left_out) return;
  state.left_out = leave_out;
  if (!leave_out) {
    torch::jit::getNumProfiledRuns() = state.usual_runs;
    return;
  }
  state.usual_runs = torch::jit::getNumProfiledRuns();
  state.apply();
}

WithProfiling::WithProfiling() {
  need(1);
}

WithProfiling::~WithProfiling() {
  need(-1);
}

} // namespace torchmdla
