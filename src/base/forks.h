// Consistency of locks and data when the process forks.
//
// The other threads do not exist in the child of a fork. Everything is as they left it: mutexes
// locked, lists half written. A fork by Python (os.fork) therefore waits for every section that is
// held by a `ForkGuard`. Work that takes too long for that notes the process that it began in.
#pragma once

#include "striped.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace torchmdla {

// Return the number of this process, which differs in each child of a fork. Work under another
// number was begun by a thread that does not exist here.
uint64_t process_number();

// Section during which the process does not fork. It may wait for the GIL, or for another such
// section.
class ForkGuard {
public:
  ForkGuard();
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;
};

// Lock of a mutex within an unforked section. The child of a fork finds the mutex free, and the
// data that it guards consistent.
class ForkSafeLock {
public:
  explicit ForkSafeLock(std::mutex& mutex) : guard_(mutex) {}

private:
  const ForkGuard section_;
  const std::lock_guard<std::mutex> guard_;
};

// Value of a lock that is free. The value of others is the number of the holder's process.
constexpr uint64_t no_holder = 0;

// Take a lock without waiting. Return false if a thread of this process holds it. Threads of other
// processes never release their locks here, so these are taken over.
inline bool try_acquire(std::atomic<uint64_t>& holder) {
  const auto process = process_number();
  auto current = no_holder;
  return holder.compare_exchange_strong(current, process, std::memory_order_acquire) ||
         (current != process &&
          holder.compare_exchange_strong(current, process, std::memory_order_acquire));
}

// Mutex for work that a fork does not wait for. It is free in the child of a fork. The data that it
// guards must be consistent at any time, or change only in unforked sections.
class ForkRobustMutex {
public:
  void lock();
  bool try_lock() { return try_acquire(holder_); }
  void unlock();

private:
  std::atomic<uint64_t> holder_{no_holder};
};

// Shared pointer that threads read while others replace it; each locks it for a few instructions. A
// read writes to no memory that other threads read, because each stripe has its own reference
// count. In the child of a fork the pointer is free and consistent, because it is replaced in
// unforked sections. A read that a fork interrupts leaks at most one reference.
template <class T> class RcuCell {
public:
  explicit RcuCell(std::shared_ptr<T> value = nullptr) { replace(std::move(value)); }

  std::shared_ptr<T> load() const {
    auto& stripe = stripes_.local();
    const SpinLock lock(stripe.holder);
    return stripe.value;
  }

  void store(std::shared_ptr<T> value) {
    const ForkGuard section;
    std::shared_ptr<T> previous; // destroyed after the lock is released
    const SpinLock lock(holder_);
    previous = replace(std::move(value));
  }

  // Set the pointer to null if it is still `value`. Return a reference that shows whether readers
  // still have the old object.
  std::weak_ptr<T> drop(const std::shared_ptr<T>& value) {
    const ForkGuard section;
    std::shared_ptr<T> previous;
    const SpinLock lock(holder_);
    if (value_ == value) previous = replace(nullptr);
    return previous;
  }

private:
  class SpinLock {
  public:
    explicit SpinLock(std::atomic<uint64_t>& holder) : holder_(holder) {
      constexpr int attempts_per_yield = 64; // the holder may have lost its processor
      for (int attempt = 1; !try_acquire(holder_); ++attempt)
        if (attempt % attempts_per_yield == 0) std::this_thread::yield();
    }
    ~SpinLock() { holder_.store(no_holder, std::memory_order_release); }
    SpinLock(const SpinLock&) = delete;
    SpinLock& operator=(const SpinLock&) = delete;

  private:
    std::atomic<uint64_t>& holder_;
  };

  struct Stripe {
    std::atomic<uint64_t> holder{no_holder};
    std::shared_ptr<T> value;
  };

  // Return the same object with another reference count, in cache lines of its own.
  static std::shared_ptr<T> with_separate_count(const std::shared_ptr<T>& value) {
    struct alignas(64) Reference {
      std::shared_ptr<T> value;
    };
    if (!value) return nullptr;
    const auto reference = std::make_shared<Reference>(Reference{value});
    return {reference, value.get()};
  }

  // Replace the value in all stripes and return the old value.
  std::shared_ptr<T> replace(std::shared_ptr<T> value) {
    stripes_.for_each([&](Stripe& stripe) {
      auto reference = with_separate_count(value);
      const SpinLock lock(stripe.holder);
      stripe.value.swap(reference);
    });
    return std::exchange(value_, std::move(value));
  }

  std::atomic<uint64_t> holder_{no_holder}; // locked while the value is replaced
  std::shared_ptr<T> value_;
  Striped<Stripe> stripes_;
};

// Enter an unforked section when no other thread is in one, and keep other threads out. Only the
// thread that forks, which has the GIL, calls this. Return false if it takes longer than a moment:
// a thread in a section may need the GIL to leave.
bool enter_alone();

// Leave the section after the fork, in both processes.
void leave_alone();

} // namespace torchmdla
