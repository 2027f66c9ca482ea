#include "content_verifier.h"

#include <algorithm>
#include <utility>

namespace torchmdla {

namespace {

// Maximum number of lines of content that every call checks as a whole.
constexpr size_t max_whole_lines = 4;

// Minimum number of lines of other content that every call checks.
constexpr size_t min_lines = 2;

// Number of lines (a page) up to which this minimum meets all of them soon enough.
constexpr size_t max_lines_met_soon = 64;

// Ratio of a call's time to the time for checking.
constexpr uint64_t call_to_check_ratio = 160;

// Maximum factor by which one call may increase the share. An interruption may have lengthened the
// call.
constexpr uint64_t max_share_growth = 4;

} // namespace

ContentVerifier::ContentVerifier(std::vector<Fingerprint> contents)
    : contents_(std::move(contents)),
      is_adaptive_(std::ranges::any_of(
          contents_, [](const auto& content) { return content.steps() > max_lines_met_soon; })) {
  rounds_.for_each([&](Round& round) {
    round.steps = std::vector<Steps>((contents_.size() + steps_per_line - 1) / steps_per_line);
  });
}

bool ContentVerifier::verify_next(size_t index, const void* data) {
  const auto& content = contents_[index];
  auto& round = rounds_.local();
  auto& position = round.next(index);
  const auto steps = content.steps();
  const auto share = round.share.load(std::memory_order_relaxed);
  const auto count =
      steps <= max_whole_lines ? steps : std::max<size_t>(min_lines, steps * share / full_share);
  const auto start = position.load(std::memory_order_relaxed);
  const auto next = start + count;
  position.store(next < steps ? next : next - steps, std::memory_order_relaxed);
  return content.matches(data, start, count);
}

void ContentVerifier::prefetch(size_t index, const void* data) const {
  const auto& content = contents_[index];
  const auto& position = rounds_.local().next(index);
  content.prefetch(data, position.load(std::memory_order_relaxed),
                   std::min(max_whole_lines, content.steps()));
}

void ContentVerifier::adapt_share(uint64_t check_time, uint64_t run_time) {
  auto& current = rounds_.local().share;
  const auto share = current.load(std::memory_order_relaxed);
  const auto affordable =
      share * (run_time / call_to_check_ratio) / std::max<uint64_t>(check_time, 1);
  current.store(std::clamp(std::min(affordable, share * max_share_growth), min_share, full_share),
                std::memory_order_relaxed);
}

} // namespace torchmdla
