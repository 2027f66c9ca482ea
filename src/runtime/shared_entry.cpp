// Entries that threads share: every thread runs the whole entry, and of each kernel only its chunk.
// A thread waits only where a kernel uses data of other threads (docs/design/threads.md).

#include "device_calls.h"
#include "input_releases.h"
#include "kernel_times.h"
#include "thread_quota.h"

#include "base/available_cpus.h"
#include "base/thread_loops.h"

#include <ATen/Parallel.h>

#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <thread>

#if AT_PARALLEL_OPENMP
#include <omp.h>
#endif

namespace torchmdla {

namespace {

constexpr int64_t most_threads = 256;

// Interval of addresses that blocks of a range use. Blocks from number n * blocks on use the
// addresses from n * stride + begin to n * stride + end.
struct Footprint {
  int64_t blocks, stride, begin, end;
};

// Wait of a kernel for an earlier one, for the threads whose chunks have a common address.
struct Wait {
  int64_t distance; // in kernels
  int64_t range, grain;
  Footprint earlier, later;
};

// Constants of a kernel in a shared entry, as torchmdla/devices/cpu/codegen/entry/function.py
// writes them. `waits` structures Wait follow.
struct SharedKernel {
  int64_t number;  // negative: a place of the entry, without blocks
  int64_t grain;   // 0: one thread runs it
  int64_t barrier; // distance to the kernel that all threads wait for; 0: none
  int64_t waits;

  const Wait* first_wait() const { return reinterpret_cast<const Wait*>(this + 1); }
};

int64_t floor_divide(int64_t number, int64_t divisor) {
  return number >= 0 ? number / divisor : -ceil_divide(-number, divisor);
}

// Return the number of blocks in a thread's chunk of a range, as at::parallel_for chooses it.
int64_t chunk_size(int64_t range, int64_t grain, int64_t threads) {
  if (grain == 0 || range <= grain) return std::max<int64_t>(range, 1);
  return ceil_divide(range, std::min(threads, ceil_divide(range, grain)));
}

// Thrown in threads that wait for a thread that failed.
struct TeamFailed {};

// Threads that share an entry. Each publishes its progress in a cache line that only it writes.
class Team {
public:
  Team(int64_t threads, int64_t most)
      : most_(std::min(most, most_threads)), has_cpus_(threads <= cpus()) {
    for (int64_t thread = 0; thread < std::min(threads, most_); ++thread)
      progress_[thread].kernels = 0;
  }

  // Return the number of threads that take part, of those that the system delivered.
  int64_t size(int64_t delivered) const { return std::min(delivered, most_); }

  // Publish that a thread has finished the first `kernels` kernels. Their stores are visible then:
  // compiled code does not have streaming stores, which would need a fence.
  void publish(int64_t thread, int64_t kernels) {
    progress_of(thread).store(kernels, std::memory_order_release);
  }

  // Wait until threads `first` to `last` have finished the first `kernels` kernels.
  void wait(int64_t first, int64_t last, int64_t kernels) {
    for (int64_t thread = first; thread <= last; ++thread)
      if (progress_of(thread).load(std::memory_order_acquire) < kernels)
        wait_longer(progress_of(thread), kernels);
  }

  void fail(std::exception_ptr failure) {
    if (!has_failure_.exchange(true)) failure_ = std::move(failure);
    failed_.store(true, std::memory_order_release);
  }

  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

private:
  struct alignas(64) Progress {
    int64_t kernels;
  };

  static int64_t cpus() {
    static const int64_t number = available_cpus();
    return number;
  }

  std::atomic_ref<int64_t> progress_of(int64_t thread) {
    return std::atomic_ref(progress_[thread].kernels);
  }

  // Wait on the CPU for longer than a time slice, as OpenMP's barriers do. If another process has
  // the CPU of the thread that is waited for, this thread would lose its own CPU, too. If there are
  // fewer CPUs than threads, the other thread may need this one's.
  void wait_longer(std::atomic_ref<int64_t> finished, int64_t kernels) const {
    const int spins = has_cpus_ ? 300'000 : 200;
    const int yields = has_cpus_ ? 0 : 20;
    for (int look = 0; finished.load(std::memory_order_acquire) < kernels; ++look) {
      if (failed_.load(std::memory_order_acquire)) throw TeamFailed();
      if (look < spins)
        pause_processor();
      else if (look < spins + yields)
        sched_yield();
      else
        std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

  const int64_t most_;
  const bool has_cpus_; // one for each thread
  std::atomic<bool> has_failure_{false};
  std::atomic<bool> failed_{false};
  std::exception_ptr failure_;                  // read after all threads have joined
  std::array<Progress, most_threads> progress_; // only those of threads that take part have a value
};

// Return whether several threads run an entry that has `tasks` tasks. If kernels are observed, they
// run one after another, so that each has a time.
bool is_shared(int64_t tasks) {
#if AT_PARALLEL_OPENMP
  return tasks > 1 && at::get_num_threads() > 1 && !at::in_parallel_region() &&
         !kernel_observation().any();
#else
  return false; // Threads of other pools may run one after another, and must not wait.
#endif
}

} // namespace

} // namespace torchmdla

// Thread of a team, and the number of kernels that it has finished.
struct mdla_member {
  torchmdla::Team& team;
  const int64_t threads;
  const int64_t thread;
  int64_t kernels = 0;

  void run(mdla_kernel body, void* const* operands, int64_t range,
           const torchmdla::SharedKernel& kernel) {
    if (thread == 0 && kernel.number >= 0) release_inputs(kernel.number);
    if (kernel.barrier) team.wait(0, threads - 1, kernels - kernel.barrier + 1);
    const auto size = torchmdla::chunk_size(range, kernel.grain, threads);
    const auto first = thread * size, end = std::min(range, first + size);
    if (first < end) {
      for (const auto* wait = kernel.first_wait(); wait != kernel.first_wait() + kernel.waits;
           ++wait)
        wait_for(*wait, first, end);
      body(operands, first, end);
    }
    team.publish(thread, ++kernels);
  }

private:
  // Wait for the threads whose blocks of an earlier kernel use addresses of these blocks.
  void wait_for(const torchmdla::Wait& wait, int64_t first, int64_t end) {
    const auto& earlier = wait.earlier;
    const auto& later = wait.later;
    const auto from = first / later.blocks * later.stride + later.begin;
    const auto to = (end - 1) / later.blocks * later.stride + later.end;
    const auto lowest = torchmdla::floor_divide(from - earlier.end, earlier.stride) + 1;
    const auto highest = torchmdla::floor_divide(to - earlier.begin - 1, earlier.stride);
    const auto first_block = std::max<int64_t>(lowest, 0) * earlier.blocks;
    const auto last_block = std::min((highest + 1) * earlier.blocks, wait.range) - 1;
    if (first_block > last_block) return;
    const auto size = torchmdla::chunk_size(wait.range, wait.grain, threads);
    team.wait(first_block / size, last_block / size, kernels - wait.distance + 1);
  }

  // Drop the inputs that no kernel from `number` on reads. Other threads may still read them.
  void release_inputs(int64_t number) {
    auto* const releases = torchmdla::InputReleases::current();
    if (!releases || !releases->is_due(number)) return;
    team.wait(0, threads - 1, kernels);
    releases->begin(number);
  }
};

int32_t mdla_share_entry(mdla_shared_entry entry, void* const* buffers, int64_t tasks) {
  torchmdla::limit_to_quota();
  int32_t status = 0;
  if (!torchmdla::is_shared(tasks)) return entry(buffers, nullptr, &status) | status;
  int32_t result = 0;
#if AT_PARALLEL_OPENMP
  torchmdla::Team team(at::get_num_threads(), tasks);
#pragma omp parallel
  {
    const auto threads = team.size(omp_get_num_threads());
    const auto thread = omp_get_thread_num();
    if (thread < threads) {
      mdla_member member{team, threads, thread};
      try {
        const auto outcome = entry(buffers, &member, &status);
        if (thread == 0) result = outcome;
      } catch (const torchmdla::TeamFailed&) {
      } catch (...) {
        team.fail(std::current_exception());
      }
    }
  }
  team.rethrow();
#endif
  return result | status;
}

void mdla_share_kernel(mdla_member* member, mdla_kernel body, void* const* operands, int64_t range,
                       const int64_t* constants) {
  const auto& kernel = *reinterpret_cast<const torchmdla::SharedKernel*>(constants);
  if (member) return member->run(body, operands, range, kernel);
  if (kernel.number < 0) return;
  mdla_begin_kernel(kernel.number);
  if (kernel.grain)
    mdla_parallel_for(body, operands, 0, range, kernel.grain);
  else
    body(operands, 0, range);
}
