// Looks, in every call, at a part of what parameters hold: the next part in the next call, and as
// much as a small part of the calls' time allows.
#pragma once

#include "fingerprint.h"
#include "support/striped.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace torchmdla {

// Any number of threads may look: each goes its own round. Two that share a stripe go on from where
// they find each other, and do no harm where they look at the same lines at a time.
class Watch {
public:
  // Looks at these contents, by index.
  explicit Watch(std::vector<Fingerprint> contents);

  // Whether the next lines of content `index` are at `data` as they were.
  bool holds(size_t index, const void* data);

  // Fetches the first lines that `holds` will look at, without waiting for them.
  void prefetch(size_t index, const void* data) const;

  // Whether it is to be told what looking takes.
  bool adapts() const { return adapts_; }

  // What looking took in a call, and what the call took else, by any clock.
  void adapt(uint64_t looking, uint64_t running);

private:
  static constexpr uint64_t all = 1 << 20, least = all >> 12, first = all >> 8;

  // Steps in a cache line of their own, so that stripes have none in common.
  static constexpr size_t in_line = 8;
  struct alignas(64) Steps {
    std::array<std::atomic<size_t>, in_line> next{};
  };

  struct Round {
    std::atomic<uint64_t> share{first}; // of the lines of each that a call looks at, of `all`
    std::vector<Steps> steps;

    std::atomic<size_t>& next(size_t index) { return steps[index / in_line].next[index % in_line]; }
    const std::atomic<size_t>& next(size_t index) const {
      return steps[index / in_line].next[index % in_line];
    }
  };

  const std::vector<Fingerprint> contents_;
  const bool adapts_;
  Striped<Round> rounds_;
};

} // namespace torchmdla
