// Counters of the work of groups in this process, shown by `torchmdla.stats()`.
#pragma once

#include "base/striped.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace torchmdla {

// Reason why a group ran its subgraph in PyTorch's interpreter. `describe` has their texts in
// order.
enum class Fallback {
  switched_off,
  dispatch_mode,
  input_kind,
  requires_grad,
  saved_tensors,
  tangent,
  being_compiled,
  too_many_specialisations,
  status,
  no_compiler,
  slower,
  count
};

const char* describe(Fallback reason);

// Counter of an event in every call. Threads write to separate cache lines.
class StripedCount {
public:
  void add() { counts_.local().fetch_add(1, std::memory_order_relaxed); }
  int64_t total() const {
    int64_t sum = 0;
    counts_.for_each([&](const auto& count) { sum += count.load(std::memory_order_relaxed); });
    return sum;
  }

private:
  Striped<std::atomic<int64_t>> counts_;
};

// Counts of events, by their text.
class ReasonCounts {
public:
  using Counter = std::atomic<int64_t>;

  void count(const std::string& reason) { ++counter(reason); }

  // Return the counter of `reason`, for events of many calls. It lives as long as this object.
  Counter& counter(const std::string& reason);

  std::map<std::string, int64_t> counts() const;
  int64_t total() const;
  void reset();

private:
  mutable std::mutex mutex_;
  std::map<std::string, Counter> counts_; // guarded by mutex_; entries stay
};

// Calls that ran in PyTorch's interpreter, by reason.
class FallbackCounts {
public:
  void count(Fallback reason) {
    known_[static_cast<size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
  }

  // Count a call of a group whose compilation failed. The reason is the compiler's.
  void count(const std::string& reason) { failures_.count(reason); }
  ReasonCounts::Counter& counter(const std::string& reason) { return failures_.counter(reason); }

  std::map<std::string, int64_t> counts() const;
  int64_t total() const;
  void reset();

private:
  std::array<std::atomic<int64_t>, static_cast<size_t>(Fallback::count)> known_{};
  ReasonCounts failures_;
};

// Counts of the files that hold code.
struct PackageCounts {
  ReasonCounts loaded;                     // packages, by the target whose code is used
  std::atomic<int64_t> specialisations{0}; // loaded by groups
  ReasonCounts refused;                    // packages, or specialisations in them

  void reset();
};

// Counts of the limit on memory (memory_limit.h).
struct MemoryCounts {
  std::atomic<int64_t> unpacked{0};   // times that a specialisation lost its packs
  std::atomic<int64_t> evicted{0};    // specialisations that were evicted
  std::atomic<int64_t> over_limit{0}; // growths after which the limit could not be met

  void reset();
};

// Counts of comparisons with PyTorch's operators (speed_check.h).
struct SpeedCounts {
  std::atomic<int64_t> checks{0};   // comparisons that were begun
  std::atomic<double> seconds{0};   // extra time
  std::atomic<int64_t> replaced{0}; // specialisations whose code was replaced, by any comparison

  void reset();
};

struct Statistics {
  std::atomic<int64_t> groups{0};
  std::atomic<int64_t> specialisations{0};
  std::atomic<int64_t> dynamic{0};        // specialisations for any sizes
  std::atomic<int64_t> training_calls{0}; // calls of groups that PyTorch ran for training
  FallbackCounts fallbacks;               // fallbacks in the calls of all groups
  // TorchScript graphs that went through the pass while no device was in use.
  std::atomic<int64_t> optimised_without_device{0};
  ReasonCounts not_dynamic; // why groups with varying sizes are compiled for each size
  ReasonCounts not_trained; // why groups have no programs of training steps

  PackageCounts packages;
  MemoryCounts memory;
  SpeedCounts speed;

  void reset();
};

Statistics& statistics();

} // namespace torchmdla
