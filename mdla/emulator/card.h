// Memory of a card, which the networks that are linked to it share.
#pragma once

#include "shape.h"

#include <map>
#include <mutex>
#include <vector>

namespace mdla {

class Card {
public:
  // Allocate `bytes` bytes at or above `lowest` and return their address. Throw Fault if they would
  // end above `limit`.
  int64_t allocate(int64_t bytes, int64_t lowest, int64_t limit) {
    int64_t start = ceil_div(lowest, kAlignment) * kAlignment;
    for (const auto& [used, size] : used_) {
      if (start + bytes <= used) break;
      start = std::max(start, ceil_div(used + size, kAlignment) * kAlignment);
    }
    require(bytes <= limit - start, "the card's memory of ", limit, " bytes has no room for ",
            bytes, " at ", start);
    if (start + bytes > static_cast<int64_t>(memory.size())) memory.resize(start + bytes);
    used_[start] = bytes;
    return start;
  }

  void release(int64_t start) { used_.erase(start); }

  std::mutex mutex; // callers lock it before they use any other member
  std::vector<uint8_t> memory;

private:
  static constexpr int64_t kAlignment = 64;
  std::map<int64_t, int64_t> used_; // start, bytes
};

} // namespace mdla
