// What a fork of the process finds of the other threads, which are not there in the child.
//
// There everything is as they left it: mutexes locked, lists half written. So a fork by Python
// (os.fork) waits for every section that is `Unforked`; and what takes too long for that notes the
// process that it began in.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
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
  void unlock();

private:
  static constexpr uint64_t free = 0;
  std::atomic<uint64_t> holder_{free}; // the number of its process
};

// A shared pointer that some threads read while others replace it. That of the standard library is
// locked for the time of a read, which no fork waits for: each process reads another one.
template <class T> class Published {
public:
  std::shared_ptr<T> load() const {
    auto* slot = slot_.load(std::memory_order_acquire);
    if (slot->process != process_number()) slot = &add_slot();
    return slot->value.load(std::memory_order_acquire);
  }

  void store(std::shared_ptr<T> value) {
    load();                     // makes this process's slot
    std::shared_ptr<T> dropped; // without the lock
    const Guard guard(mutex_);
    replace(std::move(value), dropped);
  }

  // Leaves nothing, if it is still `value`.
  void drop(const std::shared_ptr<T>& value) {
    load();
    std::shared_ptr<T> dropped;
    const Guard guard(mutex_);
    if (kept_ == value) replace(nullptr, dropped);
  }

private:
  struct Slot {
    const uint64_t process = process_number();
    std::atomic<std::shared_ptr<T>> value;
  };

  void replace(std::shared_ptr<T> value, std::shared_ptr<T>& dropped) {
    dropped = std::exchange(kept_, value);
    slot_.load(std::memory_order_relaxed)->value.store(std::move(value), std::memory_order_release);
  }

  Slot& add_slot() const {
    const Guard guard(mutex_);
    if (auto* slot = slot_.load(std::memory_order_relaxed); slot->process == process_number())
      return *slot;
    auto& added = later_.emplace_back();
    added.value.store(kept_, std::memory_order_relaxed);
    slot_.store(&added, std::memory_order_release);
    return added;
  }

  mutable Slot first_;
  mutable std::atomic<Slot*> slot_{&first_};
  mutable std::mutex mutex_;      // guards what follows
  mutable std::list<Slot> later_; // after forks
  std::shared_ptr<T> kept_;
};

// For the thread that forks, which has the GIL: enters an unforked section when no other thread is
// in one, and lets none in. False if that takes longer than a moment: who is in one may need the
// GIL to leave.
bool enter_alone();

// After the fork, in both processes.
void leave_alone();

} // namespace torchmdla
