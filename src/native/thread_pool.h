// Threads that share the ranges of kernels: those of mdla_parallel_for (docs/architecture.md).
#pragma once

#include "runtime/device_calls.h"

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

namespace torchmdla::native {

constexpr int most_threads = 1 << 12;

// On how many threads models run that are told no number: as many as OMP_NUM_THREADS says, which is
// set for all libraries of a program, and else one for each CPU that this process may use.
int default_threads();

// While one lives, ranges that this thread shares are shared with so many threads, itself among
// them.
class ThreadLimit {
public:
  explicit ThreadLimit(int threads);
  ~ThreadLimit();
  ThreadLimit(const ThreadLimit&) = delete;
  ThreadLimit& operator=(const ThreadLimit&) = delete;

private:
  int before_;
};

// Threads wait for ranges that others open. Any number of ranges may be open at a time: who opens
// one works on it, and is never kept waiting for threads that are busy elsewhere.
class ThreadPool {
public:
  // A process that was forked has none of the threads of its parent, and gets a pool of its own.
  static ThreadPool& of_this_process();

  // Runs `body` over [begin, end) in chunks of at least `grain`; serial within such a call.
  void run(mdla_kernel body, void* const* operands, int64_t begin, int64_t end, int64_t grain);

private:
  class Range;

  ThreadPool();
  void start_threads(int wanted);
  void work();
  Range* join_range();
  void leave_range(Range& range);
  void close_range(Range& range);

  const uint64_t process_;
  std::atomic<uint32_t> opened_{0}; // counts ranges
  std::mutex mutex_;                // guards what follows
  std::vector<Range*> open_;
  int threads_ = 0;
};

} // namespace torchmdla::native
