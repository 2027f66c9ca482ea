// Counters of what groups did in this process, shown by `torchmdla.stats()`.
#pragma once

#include "support/striped.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace torchmdla {

// Why a group ran its subgraph in PyTorch's interpreter.
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
  count
};

const char* describe(Fallback reason);

// Counts what every call does, in each thread without a line that others write.
class StripedCount {
public:
  void add() { counts_.mine().fetch_add(1, std::memory_order_relaxed); }
  int64_t total() const {
    int64_t sum = 0;
    counts_.for_each([&](const auto& count) { sum += count.load(std::memory_order_relaxed); });
    return sum;
  }

private:
  Striped<std::atomic<int64_t>> counts_;
};

// How often what happened, by its text.
class ReasonCounts {
public:
  using Counter = std::atomic<int64_t>;

  void count(const std::string& reason) { ++counter(reason); }

  // For what is counted in many calls. It lives as long as this does.
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

  // A group whose compilation failed; the reason is the compiler's.
  void count(const std::string& reason) { failures_.count(reason); }
  ReasonCounts::Counter& counter(const std::string& reason) { return failures_.counter(reason); }

  std::map<std::string, int64_t> counts() const;
  int64_t total() const;
  void reset();

private:
  std::array<std::atomic<int64_t>, static_cast<size_t>(Fallback::count)> known_{};
  ReasonCounts failures_;
};

// Of files that hold code.
struct PackageCounts {
  ReasonCounts taken;                      // packages, by the target whose code is used
  std::atomic<int64_t> specialisations{0}; // that a group took over
  ReasonCounts refused;                    // packages, or specialisations in them

  void reset();
};

// Of the limit on memory (memory_limit.h).
struct MemoryCounts {
  std::atomic<int64_t> unpacked{0};   // times that a specialisation lost what it packed
  std::atomic<int64_t> evicted{0};    // specialisations that were taken out
  std::atomic<int64_t> over_limit{0}; // growths after which no more could be, and it did not fit

  void reset();
};

struct Statistics {
  std::atomic<int64_t> groups{0};
  std::atomic<int64_t> specialisations{0};
  std::atomic<int64_t> dynamic{0};        // specialisations for any sizes
  std::atomic<int64_t> training_calls{0}; // of groups, as PyTorch runs a program that trains
  FallbackCounts fallbacks;               // of the calls of all groups
  // Graphs of TorchScript that went through the pass while no device was in use.
  std::atomic<int64_t> optimised_without_device{0};
  ReasonCounts not_dynamic; // groups whose sizes vary and that are compiled for each of them

  PackageCounts packages;
  MemoryCounts memory;

  void reset();
};

Statistics& statistics();

} // namespace torchmdla
