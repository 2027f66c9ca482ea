// Verification of the contents of parameters. Every call checks a part of them, and the next call
// the next part. The size of the part is limited to a small share of the calls' time.
#pragma once

#include "base/striped.h"
#include "fingerprint.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace torchmdla {

// Verifier of contents. Thread-safe: each thread checks in a round of its own. Two threads that
// share a stripe continue from each other's position, and may check the same lines at the same
// time.
class ContentVerifier {
public:
  // Verify these contents, which are identified by index.
  explicit ContentVerifier(std::vector<Fingerprint> contents);

  // Return whether the next lines of content `index`, which is at `data`, are unchanged.
  bool verify_next(size_t index, const void* data);

  // Prefetch the first lines that `verify_next` will check.
  void prefetch(size_t index, const void* data) const;

  // Return whether `adapt_share` is to be called.
  bool is_adaptive() const { return is_adaptive_; }

  // Adapt the checked share to the time for checking and to the rest of a call's time, by any
  // clock.
  void adapt_share(uint64_t check_time, uint64_t run_time);

private:
  static constexpr uint64_t full_share = 1 << 20, min_share = full_share >> 12,
                            initial_share = full_share >> 8;

  // Steps, in cache lines of their own, so that stripes do not share any.
  static constexpr size_t steps_per_line = 8;
  struct alignas(64) Steps {
    std::array<std::atomic<size_t>, steps_per_line> next{};
  };

  struct Round {
    // Share of each content's lines that a call checks, in units of 1 / `full_share`.
    std::atomic<uint64_t> share{initial_share};
    std::vector<Steps> steps;

    std::atomic<size_t>& next(size_t index) {
      return steps[index / steps_per_line].next[index % steps_per_line];
    }
  };

  const std::vector<Fingerprint> contents_;
  const bool is_adaptive_;
  Striped<Round> rounds_;
};

} // namespace torchmdla
