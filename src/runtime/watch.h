// Watch over the contents of parameters. Every call checks a part of them, and the next call the
// next part. The size of the part is limited to a small share of the calls' time.
#pragma once

#include "fingerprint.h"
#include "support/striped.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace torchmdla {

// Watch over contents. Thread-safe: each thread checks in a round of its own. Two threads that
// share a stripe continue from each other's position, and may check the same lines at the same
// time.
class Watch {
public:
  // Watch these contents, which are identified by index.
  explicit Watch(std::vector<Fingerprint> contents);

  // Return whether the next lines of content `index`, which is at `data`, are unchanged.
  bool holds(size_t index, const void* data);

  // Prefetch the first lines that `holds` will check.
  void prefetch(size_t index, const void* data) const;

  // Return whether `adapt` is to be called.
  bool adapts() const { return adapts_; }

  // Adapt the checked share to the time for checking and to the rest of a call's time, by any
  // clock.
  void adapt(uint64_t looking, uint64_t running);

private:
  static constexpr uint64_t all = 1 << 20, least = all >> 12, first = all >> 8;

  // Steps, in cache lines of their own, so that stripes do not share any.
  static constexpr size_t in_line = 8;
  struct alignas(64) Steps {
    std::array<std::atomic<size_t>, in_line> next{};
  };

  struct Round {
    // Share of each content's lines that a call checks, in units of 1 / `all`.
    std::atomic<uint64_t> share{first};
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
