// Values with a copy for each running thread, so that threads do not write to the same cache lines.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <memory>
#include <thread>

namespace torchmdla {

// Return the number of the calling thread: the least one that no other running thread has.
size_t thread_number();

// Value with several stripes. Threads share a stripe only if there are more threads than stripes. A
// stripe must therefore be safe to use from several threads, and so must a walk over all stripes.
template <class T> class Striped {
public:
  T& local() const { return stripes_[thread_number() & (count_ - 1)].value; }

  template <class Visit> void for_each(Visit visit) const {
    for (size_t i = 0; i < count_; ++i)
      visit(stripes_[i].value);
  }

private:
  static constexpr size_t max_stripes = 64;

  struct alignas(64) Stripe {
    T value{};
  };

  // Twice the number of processors, because threads that wait have numbers, too.
  const size_t count_ = std::min(
      std::bit_ceil(2 * std::max<size_t>(std::thread::hardware_concurrency(), 1)), max_stripes);
  const std::unique_ptr<Stripe[]> stripes_ = std::make_unique<Stripe[]>(count_);
};

} // namespace torchmdla
