#include "striped.h"

#include "forks.h"
#include "never_destroyed.h"

#include <mutex>
#include <vector>

namespace torchmdla {

namespace {

struct Numbers {
  std::mutex mutex;
  std::vector<bool> taken;
};

// Return the numbers. They are never destroyed, because threads also end after the destructors of
// statics.
Numbers& numbers() {
  static NeverDestroyed<Numbers> instance;
  return *instance;
}

class ThreadNumber {
public:
  ThreadNumber() {
    const Guard guard(numbers().mutex);
    auto& taken = numbers().taken;
    number_ = std::ranges::find(taken, false) - taken.begin();
    if (number_ == taken.size()) taken.push_back(false);
    taken[number_] = true;
  }
  ~ThreadNumber() {
    const Guard guard(numbers().mutex);
    numbers().taken[number_] = false;
  }
  ThreadNumber(const ThreadNumber&) = delete;
  ThreadNumber& operator=(const ThreadNumber&) = delete;

  size_t number() const { return number_; }

private:
  size_t number_;
};

} // namespace

size_t thread_number() {
  thread_local const ThreadNumber mine;
  return mine.number();
}

} // namespace torchmdla
