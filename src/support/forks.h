// What a fork of the process finds of the other threads, which are not there in the child.
//
// There everything is as they left it: mutexes locked, lists half written. So a fork by Python
// (os.fork) waits for every section that is `Unforked`; and what takes too long for that notes the
// process that it began in.
#pragma once

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

// A shared pointer that some threads read while others replace it, each of them for a few
// instructions. In the child of a fork it is free, and whole: it is replaced in unforked sections,
// and all that a read which a fork cut leaves is a reference that nobody gives back.
template <class T> class Published {
public:
  explicit Published(std::shared_ptr<T> value = nullptr) : value_(std::move(value)) {}

  std::shared_ptr<T> load() const {
    const Held held(holder_);
    return value_;
  }

  void store(std::shared_ptr<T> value) {
    const Unforked section;
    swap(value); // what was there goes without the lock
  }

  // Leaves nothing, if it is still `value`.
  void drop(const std::shared_ptr<T>& value) {
    const Unforked section;
    std::shared_ptr<T> dropped;
    const Held held(holder_);
    if (value_ == value) value_.swap(dropped);
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

  void swap(std::shared_ptr<T>& value) {
    const Held held(holder_);
    value_.swap(value);
  }

  mutable std::atomic<uint64_t> holder_{nobody}; // the number of its process
  std::shared_ptr<T> value_;
};

// For the thread that forks, which has the GIL: enters an unforked section when no other thread is
// in one, and lets none in. False if that takes longer than a moment: who is in one may need the
// GIL to leave.
bool enter_alone();

// After the fork, in both processes.
void leave_alone();

} // namespace torchmdla
