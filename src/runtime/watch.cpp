#include "watch.h"

#include <algorithm>

namespace torchmdla {

namespace {

// Content of no more lines is looked at whole.
constexpr size_t small = 4;

// Lines of any other that every call looks at.
constexpr size_t always = 2;

// Content of no more lines (a page) is looked at soon enough by these.
constexpr size_t soon = 64;

// A call's time over the time for looking.
constexpr uint64_t times_longer = 160;

// What one call may multiply the share by: its time may be that of an interruption.
constexpr uint64_t most_growth = 4;

} // namespace

void Watch::add(const Fingerprint& content) {
  watched_.emplace_back().content = content;
  adapts_ |= content.steps() > soon;
}

bool Watch::holds(size_t index, const void* data) {
  auto& watched = watched_[index];
  const auto steps = watched.content.steps();
  const auto share = share_.load(std::memory_order_relaxed);
  const auto count = steps <= small ? steps : std::max<size_t>(always, steps * share / all);
  const auto here = watched.next.load(std::memory_order_relaxed);
  const auto next = here + count;
  watched.next.store(next < steps ? next : next - steps, std::memory_order_relaxed);
  return watched.content.holds(data, here, count);
}

void Watch::prefetch(size_t index, const void* data) const {
  const auto& watched = watched_[index];
  const auto count = std::min(small, watched.content.steps());
  watched.content.prefetch(data, watched.next.load(std::memory_order_relaxed), count);
}

void Watch::adapt(uint64_t looking, uint64_t running) {
  const auto share = share_.load(std::memory_order_relaxed);
  const auto affordable = share * (running / times_longer) / std::max<uint64_t>(looking, 1);
  share_.store(std::clamp(std::min(affordable, share * most_growth), least, all),
               std::memory_order_relaxed);
}

} // namespace torchmdla
