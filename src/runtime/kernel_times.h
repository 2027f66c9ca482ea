// Times of an executable's kernels, and their ranges in PyTorch's profiler, if they are requested.
// An entry reports the beginning of each of its kernels (`mdla_begin_kernel`).
#pragma once

#include <ATen/record_function.h>
#include <c10/util/ArrayRef.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace torchmdla {

// Observation of kernels while they run, in all threads.
struct KernelObservation {
  std::atomic<bool> times{false};
  std::atomic<bool> ranges{false};  // in torch.profiler
  std::atomic<int> recordings{0};   // KernelRecordings that live
  std::atomic<bool> is_slow{false}; // whether `slow_down_kernels` has an effect

  // Return whether the user asked for times or ranges.
  bool is_requested() const {
    return times.load(std::memory_order_relaxed) || ranges.load(std::memory_order_relaxed);
  }
  bool any() const {
    return is_requested() || recordings.load(std::memory_order_relaxed) != 0 ||
           is_slow.load(std::memory_order_relaxed);
  }
};
KernelObservation& kernel_observation();

// Delay each kernel that computes the operator `op` (`"tanh"`), for tests. An empty name delays
// none.
void slow_down_kernels(const std::string& op, std::chrono::nanoseconds delay);

// Times of one executable, added up over its calls. Thread-safe.
class KernelTimes {
public:
  using Nanoseconds = int64_t;

  // Time of a kernel. If it runs several times in a call, these times are added up.
  struct Kernel {
    Nanoseconds sum = 0;
    Nanoseconds least = 0;
  };

  struct Sums {
    int64_t calls = 0;
    Kernel entry;                 // the whole entry
    std::vector<Kernel> kernels;  // by number
    std::vector<int64_t> symbols; // the sizes of the latest call
  };

  explicit KernelTimes(std::vector<std::string> names);

  const std::vector<std::string>& names() const { return names_; }
  Sums sums() const;
  void add(Nanoseconds entry, const std::vector<Nanoseconds>& kernels,
           c10::ArrayRef<int64_t> symbols);
  void reset();

private:
  const std::vector<std::string> names_;
  mutable std::mutex mutex_;
  Sums sums_; // guarded by mutex_
};

// Record of the kernels of this thread's latest call, while it lives.
class KernelRecording {
public:
  KernelRecording();
  ~KernelRecording();
  KernelRecording(const KernelRecording&) = delete;
  KernelRecording& operator=(const KernelRecording&) = delete;

  // Return the recording of this thread, or null.
  static KernelRecording* current();

  // Return the seconds of each kernel; empty without a call.
  std::vector<double> seconds() const;
  void set(const std::vector<KernelTimes::Nanoseconds>& kernels) { kernels_ = kernels; }

private:
  std::vector<KernelTimes::Nanoseconds> kernels_;
};

// Observation of one call of an entry by this thread, while it lives.
class KernelClock {
public:
  KernelClock(KernelTimes& times, c10::ArrayRef<int64_t> symbols);
  ~KernelClock();
  KernelClock(const KernelClock&) = delete;
  KernelClock& operator=(const KernelClock&) = delete;

  // Return the clock of the entry that this thread runs, or null if it is not observed.
  static KernelClock* current();

  void begin(size_t kernel);

  // Count kernels from number `first` on, which are those of a part of the entry.
  void begin_part(size_t first) { first_kernel_ = first; }

private:
  using Clock = std::chrono::steady_clock;

  void end_kernel(Clock::time_point now);

  KernelTimes& times_;
  const c10::ArrayRef<int64_t> symbols_;
  KernelClock* const outer_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point kernel_start_{};
  size_t first_kernel_ = 0;      // of the running part
  std::optional<size_t> kernel_; // the kernel that is running
  std::vector<KernelTimes::Nanoseconds> spent_;
  std::optional<at::RecordFunction> range_;
};

} // namespace torchmdla
