#include "forks.h"

#include <pthread.h>

#include <chrono>
#include <thread>

namespace torchmdla {

namespace {

// Duration of an attempt. Threads in a section that wait for the GIL get it between two attempts.
constexpr std::chrono::milliseconds attempt_duration{1};

std::atomic<uint64_t> process_counter{1};
std::atomic<int> threads_in_sections{0};
std::atomic<bool> are_sections_closed{false};
thread_local int nesting_depth = 0;

void reopen_sections() {
  are_sections_closed = false;
  are_sections_closed.notify_all();
}

void after_fork_in_child() {
  ++process_counter;
  threads_in_sections = nesting_depth > 0 ? 1 : 0;
  reopen_sections();
}

// The handler runs for every fork, even if Python is not involved.
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, after_fork_in_child);

} // namespace

uint64_t process_number() {
  return process_counter.load(std::memory_order_relaxed);
}

ForkGuard::ForkGuard() {
  if (nesting_depth++ > 0) return;
  while (true) {
    ++threads_in_sections;
    if (!are_sections_closed) return;
    --threads_in_sections;
    are_sections_closed.wait(true);
  }
}

ForkGuard::~ForkGuard() {
  if (--nesting_depth == 0) --threads_in_sections;
}

void ForkRobustMutex::lock() {
  while (!try_lock())
    holder_.wait(process_number());
}

void ForkRobustMutex::unlock() {
  holder_ = no_holder;
  holder_.notify_one();
}

bool enter_alone() {
  if (are_sections_closed.exchange(true)) return false; // another thread forks
  const auto end = std::chrono::steady_clock::now() + attempt_duration;
  if (nesting_depth++ == 0) ++threads_in_sections;
  while (threads_in_sections != 1) {
    if (std::chrono::steady_clock::now() > end) {
      leave_alone();
      return false;
    }
    std::this_thread::yield();
  }
  return true;
}

void leave_alone() {
  if (--nesting_depth == 0) --threads_in_sections;
  reopen_sections();
}

} // namespace torchmdla
