#include "kernel_times.h"

#include "base/forks.h"

#include <algorithm>
#include <sstream>
#include <thread>

namespace torchmdla {

namespace {

thread_local KernelClock* innermost_clock = nullptr;
thread_local KernelRecording* recording = nullptr;

struct Slowdown {
  std::mutex mutex;
  std::string op;                    // guarded by mutex
  std::chrono::nanoseconds delay{0}; // guarded by mutex
};

Slowdown& slowdown() {
  static auto& instance = *new Slowdown;
  return instance;
}

// Return the delay of the kernel with this name, which ends with its operators (`add+tanh`).
std::chrono::nanoseconds delay_of(const std::string& kernel) {
  const ForkSafeLock guard(slowdown().mutex);
  std::istringstream ops(kernel.substr(kernel.find(' ') + 1));
  for (std::string op; std::getline(ops, op, '+');)
    if (op == slowdown().op) return slowdown().delay;
  return std::chrono::nanoseconds(0);
}

void add_to(KernelTimes::Kernel& kernel, KernelTimes::Nanoseconds spent, bool is_first) {
  kernel.least = is_first ? spent : std::min(kernel.least, spent);
  kernel.sum += spent;
}

} // namespace

KernelObservation& kernel_observation() {
  static KernelObservation instance;
  return instance;
}

void slow_down_kernels(const std::string& op, std::chrono::nanoseconds delay) {
  const ForkSafeLock guard(slowdown().mutex);
  slowdown().op = op;
  slowdown().delay = delay;
  kernel_observation().is_slow = !op.empty();
}

KernelTimes::KernelTimes(std::vector<std::string> names) : names_(std::move(names)) {
  sums_.kernels.resize(names_.size());
}

KernelTimes::Sums KernelTimes::sums() const {
  const ForkSafeLock guard(mutex_);
  return sums_;
}

void KernelTimes::add(Nanoseconds entry, const std::vector<Nanoseconds>& kernels,
                      c10::ArrayRef<int64_t> symbols) {
  const ForkSafeLock guard(mutex_);
  const bool is_first = sums_.calls++ == 0;
  add_to(sums_.entry, entry, is_first);
  for (size_t i = 0; i < kernels.size(); ++i)
    add_to(sums_.kernels[i], kernels[i], is_first);
  sums_.symbols = symbols.vec();
}

void KernelTimes::reset() {
  const ForkSafeLock guard(mutex_);
  sums_ = {};
  sums_.kernels.resize(names_.size());
}

KernelRecording::KernelRecording() {
  recording = this;
  ++kernel_observation().recordings;
}

KernelRecording::~KernelRecording() {
  --kernel_observation().recordings;
  recording = nullptr;
}

KernelRecording* KernelRecording::current() {
  return recording;
}

std::vector<double> KernelRecording::seconds() const {
  std::vector<double> result;
  for (const auto nanoseconds : kernels_)
    result.push_back(std::chrono::duration<double>(std::chrono::nanoseconds(nanoseconds)).count());
  return result;
}

KernelClock::KernelClock(KernelTimes& times, c10::ArrayRef<int64_t> symbols)
    : times_(times), symbols_(symbols), outer_(innermost_clock), spent_(times.names().size()) {
  innermost_clock = this;
}

KernelClock::~KernelClock() {
  const auto now = Clock::now();
  end_kernel(now);
  innermost_clock = outer_;
  if (kernel_observation().times)
    times_.add(std::chrono::nanoseconds(now - start_).count(), spent_, symbols_);
  if (auto* current = KernelRecording::current()) current->set(spent_);
}

KernelClock* KernelClock::current() {
  return innermost_clock;
}

void KernelClock::begin(size_t kernel) {
  end_kernel(Clock::now());
  kernel += first_kernel_;
  if (kernel >= spent_.size()) return;
  kernel_ = kernel;
  if (kernel_observation().ranges) {
    range_.emplace(at::RecordScope::USER_SCOPE);
    if (range_->isActive()) range_->before(times_.names()[kernel]);
  }
  kernel_start_ = Clock::now();
  if (kernel_observation().is_slow) std::this_thread::sleep_for(delay_of(times_.names()[kernel]));
}

void KernelClock::end_kernel(Clock::time_point now) {
  if (kernel_) spent_[*kernel_] += std::chrono::nanoseconds(now - kernel_start_).count();
  kernel_.reset();
  range_.reset();
}

} // namespace torchmdla
