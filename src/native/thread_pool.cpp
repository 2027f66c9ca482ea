#include "thread_pool.h"

#include "base/available_cpus.h"
#include "base/forks.h"
#include "base/thread_loops.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <exception>
#include <string_view>
#include <system_error>
#include <thread>

namespace torchmdla::native {

namespace {

thread_local int thread_limit = 1;
thread_local bool is_inside = false;

// Wait until `value` differs from `old`. Kernels follow each other within microseconds, and waking
// a sleeping thread takes longer, so the thread spins for about 0.1 ms before it sleeps.
template <class T> void wait_for_change(const std::atomic<T>& value, T old) {
  constexpr int looks = 2000;
  for (int i = 0; i < looks; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause_processor();
  }
  value.wait(old, std::memory_order_acquire);
}

// Scope in which the calling thread blocks all signals. Threads that it starts inherit this, so
// that signals of the process go to the program's own threads.
class SignalsBlocked {
public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

private:
  sigset_t before_;
};

// The pool of this process. It is never freed: its threads run until the end.
std::atomic<ThreadPool*> current_pool{nullptr};

void before_fork() {
  while (!enter_alone())
    std::this_thread::yield();
}

// The threads of the pool do not exist in the child.
void after_fork_in_child() {
  current_pool = nullptr;
  leave_alone();
}

// Makes every fork of the process, by any code, wait until no thread is in an unforked section.
[[maybe_unused]] const int registered =
    pthread_atfork(before_fork, leave_alone, after_fork_in_child);

} // namespace

int default_threads() {
  const char* const variable = std::getenv("OMP_NUM_THREADS");
  const std::string_view text = variable ? variable : "";
  // OMP_NUM_THREADS may be a list. The numbers after a comma are for nested parallel regions.
  int threads = 0;
  std::from_chars(text.data(), text.data() + text.size(), threads);
  return threads > 0 && threads <= most_threads ? threads : available_cpus();
}

ThreadLimit::ThreadLimit(int threads) : before_(thread_limit) {
  thread_limit = threads;
}

ThreadLimit::~ThreadLimit() {
  thread_limit = before_;
}

// Range in chunks. Each thread takes the next chunk when it is free.
class ThreadPool::Range {
public:
  Range(mdla_kernel body, void* const* operands, int64_t begin, int64_t end, int64_t parts)
      : body_(body), operands_(operands), begin_(begin), end_(end),
        step_(ceil_divide(end - begin, parts)), chunks_(ceil_divide(end - begin, step_)) {}

  bool has_chunks() const { return next_.load(std::memory_order_relaxed) < chunks_; }

  void run_chunks() noexcept {
    for (int64_t chunk; (chunk = next_.fetch_add(1, std::memory_order_relaxed)) < chunks_;)
      run_chunk(begin_ + chunk * step_);
  }

  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

  std::atomic<int> helpers{0}; // pool threads that work on it; changed only under `mutex_`

private:
  void run_chunk(int64_t first) noexcept {
    try {
      body_(operands_, first, std::min(first + step_, end_));
    } catch (...) {
      if (!failed_.exchange(true)) failure_ = std::current_exception();
    }
  }

  mdla_kernel body_;
  void* const* operands_;
  int64_t begin_, end_, step_, chunks_;
  std::atomic<int64_t> next_{0};
  std::atomic<bool> failed_{false};
  std::exception_ptr failure_;
};

ThreadPool& ThreadPool::of_this_process() {
  static std::mutex mutex;
  if (auto* pool = current_pool.load(std::memory_order_acquire)) return *pool;
  const ForkSafeLock guard(mutex);
  if (!current_pool.load(std::memory_order_relaxed))
    current_pool.store(new ThreadPool, std::memory_order_release);
  return *current_pool.load(std::memory_order_relaxed);
}

void ThreadPool::run(mdla_kernel body, void* const* operands, int64_t begin, int64_t end,
                     int64_t grain) {
  if (begin >= end) return;
  const auto most = ceil_divide(end - begin, std::max<int64_t>(grain, 1));
  const auto parts = is_inside ? 1 : std::min<int64_t>(thread_limit, most);
  if (parts <= 1) {
    body(operands, begin, end);
    return;
  }
  Range range(body, operands, begin, end, parts);
  {
    const std::lock_guard guard(mutex_);
    start_threads(thread_limit - 1);
    open_.push_back(&range);
    opened_.fetch_add(1, std::memory_order_release);
  }
  opened_.notify_all();
  is_inside = true;
  range.run_chunks();
  is_inside = false;
  close_range(range);
  range.rethrow();
}

void ThreadPool::start_threads(int wanted) {
  if (threads_ >= wanted) return;
  const SignalsBlocked section;
  try {
    for (; threads_ < wanted; ++threads_)
      std::thread([this] { work(); }).detach();
  } catch (const std::system_error&) {
    // Fewer threads are only slower: the caller can run its whole range by itself.
  }
}

void ThreadPool::work() {
  pthread_setname_np(pthread_self(), "torchmdla");
  is_inside = true;
  while (true) {
    const auto seen = opened_.load(std::memory_order_acquire);
    while (auto* const range = join_range()) {
      range->run_chunks();
      leave_range(*range);
    }
    wait_for_change(opened_, seen);
  }
}

ThreadPool::Range* ThreadPool::join_range() {
  const std::lock_guard guard(mutex_);
  const auto range = std::ranges::find_if(open_, &Range::has_chunks);
  if (range == open_.end()) return nullptr;
  ++(*range)->helpers;
  return *range;
}

void ThreadPool::leave_range(Range& range) {
  // Notify under the mutex: the range may be destroyed as soon as it is unlocked.
  const std::lock_guard guard(mutex_);
  if (--range.helpers == 0) range.helpers.notify_one();
}

void ThreadPool::close_range(Range& range) {
  std::unique_lock lock(mutex_);
  std::erase(open_, &range);
  while (const int helpers = range.helpers) {
    lock.unlock();
    wait_for_change(range.helpers, helpers);
    lock.lock();
  }
}

} // namespace torchmdla::native
