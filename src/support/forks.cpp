#include "forks.h"

#include <pthread.h>

#include <chrono>
#include <thread>

namespace torchmdla {

namespace {

// Duration of an attempt. Threads in a section that wait for the GIL get it between two attempts.
constexpr std::chrono::milliseconds one_attempt{1};

std::atomic<uint64_t> number{1};
std::atomic<int> threads_inside{0};
std::atomic<bool> stopped{false};
thread_local int depth = 0;

void let_in() {
  stopped = false;
  stopped.notify_all();
}

void after_fork_in_child() {
  ++number;
  threads_inside = depth > 0 ? 1 : 0;
  let_in();
}

// The handler runs for every fork, even if Python is not involved.
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, after_fork_in_child);

} // namespace

uint64_t process_number() {
  return number.load(std::memory_order_relaxed);
}

Unforked::Unforked() {
  if (depth++ > 0) return;
  while (true) {
    ++threads_inside;
    if (!stopped) return;
    --threads_inside;
    stopped.wait(true);
  }
}

Unforked::~Unforked() {
  if (--depth == 0) --threads_inside;
}

void ProcessMutex::lock() {
  while (!try_lock())
    holder_.wait(process_number());
}

bool ProcessMutex::try_lock() {
  const auto own = process_number();
  auto holder = free;
  return holder_.compare_exchange_strong(holder, own) ||
         (holder != own && holder_.compare_exchange_strong(holder, own));
}

void ProcessMutex::unlock() {
  holder_ = free;
  holder_.notify_one();
}

bool enter_alone() {
  if (stopped.exchange(true)) return false; // another thread forks
  const auto end = std::chrono::steady_clock::now() + one_attempt;
  if (depth++ == 0) ++threads_inside;
  while (threads_inside != 1) {
    if (std::chrono::steady_clock::now() > end) {
      leave_alone();
      return false;
    }
    std::this_thread::yield();
  }
  return true;
}

void leave_alone() {
  if (--depth == 0) --threads_inside;
  let_in();
}

} // namespace torchmdla
