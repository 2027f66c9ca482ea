// A value for each of the threads that run at a time, so that they do not write to the same cache
// lines.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <memory>
#include <thread>

namespace torchmdla {

// The number of the calling thread: the least that no other thread has that is not at its end.
size_t thread_number();

// Threads share a stripe only where there are more of them than stripes. A stripe that is used from
// several threads must be safe for that, therefore; and so must be a walk over all stripes.
template <class T> class Striped {
public:
  T& mine() { return stripes_[thread_number() & (count_ - 1)].value; }
  const T& mine() const { return stripes_[thread_number() & (count_ - 1)].value; }

  template <class Visit> void for_each(Visit visit) const {
    for (size_t i = 0; i < count_; ++i)
      visit(stripes_[i].value);
  }
  template <class Visit> void for_each(Visit visit) {
    for (size_t i = 0; i < count_; ++i)
      visit(stripes_[i].value);
  }

private:
  static constexpr size_t most = 64;

  struct alignas(64) Stripe {
    T value{};
  };

  // Twice the processors: threads that wait hold numbers, too.
  const size_t count_ =
      std::min(std::bit_ceil(2 * std::max<size_t>(std::thread::hardware_concurrency(), 1)), most);
  const std::unique_ptr<Stripe[]> stripes_ = std::make_unique<Stripe[]>(count_);
};

} // namespace torchmdla
