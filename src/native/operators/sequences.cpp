#include "sequences.h"

#include <algorithm>
#include <limits>

namespace torchmdla::native {

namespace {

constexpr int64_t greatest = std::numeric_limits<int64_t>::max();

} // namespace

Slice::Slice(const OperatorCall& call, size_t size) : start(0), step(call.integer(3, 1)) {
  if (step == 0) fail("List slice should have non-zero step");
  if (step == std::numeric_limits<int64_t>::min()) fail("List slice step is out of bounds");
  const auto length = static_cast<int64_t>(size);
  const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? length : length - 1;
  // The largest integer also means a missing limit.
  const auto limit = [&](size_t place, int64_t missing) {
    auto index = call.integer(place, greatest);
    if (index == greatest) return missing;
    if (index < 0) index += length;
    return std::clamp(index, low, high);
  };
  start = limit(1, step > 0 ? 0 : length - 1);
  const auto end = limit(2, step > 0 ? length : -1);
  const auto distance = step > 0 ? end - start : start - end;
  const auto stride = step > 0 ? step : -step;
  if (distance > 0) count = static_cast<size_t>((distance - 1) / stride + 1);
}

} // namespace torchmdla::native
