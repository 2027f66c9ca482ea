// What a fork of the process finds of the other threads, which are not there in the child.
//
// There everything is as they left it: mutexes locked, lists half written. So a fork by Python
// (os.fork) waits for every section that is `Unforked`; and what takes too long for that notes the
// process that it began in.
#pragma once

#include "striped.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace torchmdla {

// Another number in each child of a fork: what was begun under another one was begun by a thread
// that is not here.
uint64_t process_number();

// While one lives, no fork comes. The section may wait for the GIL, or for another such section.
class Unforked {
public:
  Unforked();
  ~Unforked();
  Unforked(const Unforked&) = delete;
  Unforked& operator=(const Unforked&) = delete;
};

// A mutex locked within an unforked section: the child of a fork finds it free, and what it guards
// whole.
class Guard {
public:
  explicit Guard(std::mutex& mutex) : guard_(mutex) {}

private:
  const Unforked section_;
  const std::lock_guard<std::mutex> guard_;
};

// A mutex for work that a fork does not wait for. In the child of a fork it is free: what it guards
// must be whole at any time, or changed in unforked sections.
class ProcessMutex {
public:
  void lock();
  bool try_lock();
  void unlock();

private:
  static constexpr uint64_t free = 0;
  std::atomic<uint64_t> holder_{free}; // the number of its process
};

// A shared pointer that threads read while others replace it, each of them for a few instructions.
// A read writes to no memory that other threads read: each stripe has a reference count of its own.
// In the child of a fork it is free, and whole: it is replaced in unforked sections, and all that a
// read which a fork cut leaves is a reference that is not given back.
template <class T> class Published {
public:
  explicit Published(std::shared_ptr<T> value = nullptr) { replace(std::move(value)); }

  std::shared_ptr<T> load() const {
    auto& stripe = stripes_.mine();
    const Held held(stripe.holder);
    return stripe.value;
  }

  void store(std::shared_ptr<T> value) {
    const Unforked section;
    std::shared_ptr<T> before; // is destroyed without the lock
    const Held held(holder_);
    before = replace(std::move(value));
  }

  // Leaves nothing, if it is still `value`, and returns what tells whether a reader has that yet.
  std::weak_ptr<T> drop(const std::shared_ptr<T>& value) {
    const Unforked section;
    std::shared_ptr<T> before;
    const Held held(holder_);
    if (value_ == value) before = replace(nullptr);
    return before;
  }

private:
  static constexpr uint64_t nobody = 0;

  class Held {
  public:
    explicit Held(std::atomic<uint64_t>& holder) : holder_(holder) {
      constexpr int patience = 64; // the holder may have lost its processor
      const auto own = process_number();
      auto found = nobody;
      // What a thread of another process holds, nobody will give back.
      for (int attempt = 1; !holder_.compare_exchange_weak(found, own, std::memory_order_acquire);
           ++attempt) {
        if (found != own) continue;
        if (attempt % patience == 0) std::this_thread::yield();
        found = nobody;
      }
    }
    ~Held() { holder_.store(nobody, std::memory_order_release); }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;

  private:
    std::atomic<uint64_t>& holder_;
  };

  struct Stripe {
    mutable std::atomic<uint64_t> holder{nobody}; // the number of its process
    std::shared_ptr<T> value;
  };

  // The same object behind another reference count, in cache lines of its own.
  static std::shared_ptr<T> counted_apart(const std::shared_ptr<T>& value) {
    struct alignas(64) Reference {
      std::shared_ptr<T> value;
    };
    if (!value) return nullptr;
    const auto reference = std::make_shared<Reference>(Reference{value});
    return {reference, value.get()};
  }

  // Returns what was there.
  std::shared_ptr<T> replace(std::shared_ptr<T> value) {
    stripes_.for_each([&](Stripe& stripe) {
      auto reference = counted_apart(value);
      const Held held(stripe.holder);
      stripe.value.swap(reference);
    });
    return std::exchange(value_, std::move(value));
  }

  std::atomic<uint64_t> holder_{nobody}; // of who replaces it
  std::shared_ptr<T> value_;
  Striped<Stripe> stripes_;
};

// For the thread that forks, which has the GIL: enters an unforked section when no other thread is
// in one, and lets none in. False if that takes longer than a moment: who is in one may need the
// GIL to leave.
bool enter_alone();

// After the fork, in both processes.
void leave_alone();

} // namespace torchmdla
