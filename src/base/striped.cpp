#include "striped.h"

#include "forks.h"
#include "never_destroyed.h"

#include <mutex>
#include <vector>

namespace torchmdla {

namespace {

struct ThreadNumbers {
  std::mutex mutex;
  std::vector<bool> in_use;
};

// Return the numbers. They are never destroyed, because threads also end after the destructors of
// statics.
ThreadNumbers& numbers() {
  static NeverDestroyed<ThreadNumbers> instance;
  return *instance;
}

class ThreadNumber {
public:
  ThreadNumber() {
    const ForkSafeLock guard(numbers().mutex);
    auto& in_use = numbers().in_use;
    number_ = std::ranges::find(in_use, false) - in_use.begin();
    if (number_ == in_use.size()) in_use.push_back(false);
    in_use[number_] = true;
  }
  ~ThreadNumber() {
    const ForkSafeLock guard(numbers().mutex);
    numbers().in_use[number_] = false;
  }
  ThreadNumber(const ThreadNumber&) = delete;
  ThreadNumber& operator=(const ThreadNumber&) = delete;

  size_t number() const { return number_; }

private:
  size_t number_;
};

} // namespace

size_t thread_number() {
  thread_local const ThreadNumber thread;
  return thread.number();
}

} // namespace torchmdla
