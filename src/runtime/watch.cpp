#include "watch.h"

#include <algorithm>
#include <utility>

namespace torchmdla {

namespace {

// Maximum number of lines of content that every call checks as a whole.
constexpr size_t small = 4;

// Minimum number of lines of other content that every call checks.
constexpr size_t always = 2;

// Number of lines (a page) up to which this minimum meets all of them soon enough.
constexpr size_t soon = 64;

// Ratio of a call's time to the time for checking.
constexpr uint64_t times_longer = 160;

// Maximum factor by which one call may increase the share. An interruption may have lengthened the
// call.
constexpr uint64_t most_growth = 4;

} // namespace

Watch::Watch(std::vector<Fingerprint> contents)
    : contents_(std::move(contents)),
      adapts_(std::ranges::any_of(contents_, [](const auto& one) { return one.steps() > soon; })) {
  rounds_.for_each([&](Round& round) {
    round.steps = std::vector<Steps>((contents_.size() + in_line - 1) / in_line);
  });
}

bool Watch::holds(size_t index, const void* data) {
  const auto& content = contents_[index];
  auto& round = rounds_.mine();
  auto& position = round.next(index);
  const auto steps = content.steps();
  const auto share = round.share.load(std::memory_order_relaxed);
  const auto count = steps <= small ? steps : std::max<size_t>(always, steps * share / all);
  const auto here = position.load(std::memory_order_relaxed);
  const auto next = here + count;
  position.store(next < steps ? next : next - steps, std::memory_order_relaxed);
  return content.holds(data, here, count);
}

void Watch::prefetch(size_t index, const void* data) const {
  const auto& content = contents_[index];
  const auto& position = rounds_.mine().next(index);
  content.prefetch(data, position.load(std::memory_order_relaxed),
                   std::min(small, content.steps()));
}

void Watch::adapt(uint64_t looking, uint64_t running) {
  auto& known = rounds_.mine().share;
  const auto share = known.load(std::memory_order_relaxed);
  const auto affordable = share * (running / times_longer) / std::max<uint64_t>(looking, 1);
  known.store(std::clamp(std::min(affordable, share * most_growth), least, all),
              std::memory_order_relaxed);
}

} // namespace torchmdla
