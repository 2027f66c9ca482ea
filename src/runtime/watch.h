// Looks, in every call, at a part of what parameters hold: the next part in the next call, and as
// much as a small part of the calls' time allows.
#pragma once

#include "fingerprint.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>

namespace torchmdla {

// Any number of threads may look: each goes on from where it finds the others, and two that look at
// the same lines at a time do no harm.
class Watch {
public:
  // Looks at this content, too; its index is the next one.
  void add(const Fingerprint& content);

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

  struct Watched {
    Fingerprint content;
    std::atomic<size_t> next{0}; // step
  };

  std::deque<Watched> watched_;
  std::atomic<uint64_t> share_{first}; // of the lines of each that a call looks at, of `all`
  bool adapts_ = false;
};

} // namespace torchmdla
