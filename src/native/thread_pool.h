// Thread pool that runs the parallel ranges of kernels, mdla_parallel_for (docs/design/abi.md).
#pragma once

#include "runtime/device_calls.h"

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

namespace torchmdla::native {

constexpr int most_threads = 1 << 12;

// Return the default number of threads for models: OMP_NUM_THREADS, which applies to all libraries
// of a program, or else the number of CPUs that this process may use.
int default_threads();

// Scope in which the calling thread's ranges run on at most `threads` threads, including itself.
class ThreadLimit {
public:
  explicit ThreadLimit(int threads);
  ~ThreadLimit();
  ThreadLimit(const ThreadLimit&) = delete;
  ThreadLimit& operator=(const ThreadLimit&) = delete;

private:
  int before_;
};

// Pool of threads that wait for ranges that callers open. Any number of ranges may be open at the
// same time. The caller also works on its own range, so it never waits for threads that are busy
// with other ranges.
class ThreadPool {
public:
  // Return the pool of this process. A forked process does not have its parent's threads and gets
  // its own pool.
  static ThreadPool& of_this_process();

  // Run `body` over [begin, end) in chunks of at least `grain`. Run serially if the thread is
  // already in a range.
  void run(mdla_kernel body, void* const* operands, int64_t begin, int64_t end, int64_t grain);

private:
  class Range;

  ThreadPool() = default;
  void start_threads(int wanted);
  void work();
  Range* join_range();
  void leave_range(Range& range);
  void close_range(Range& range);

  std::atomic<uint32_t> opened_{0}; // number of ranges that were ever opened
  std::mutex mutex_;
  std::vector<Range*> open_; // guarded by `mutex_`
  int threads_ = 0;          // guarded by `mutex_`
};

} // namespace torchmdla::native
