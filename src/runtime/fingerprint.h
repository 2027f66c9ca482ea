// Fingerprints of memory: a hash of each cache line, so that a few lines can be compared at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace torchmdla {

// Return a hash of all bytes in their order. It detects accidents, not attacks. The threads of
// PyTorch's pool share the work.
uint64_t content_hash(const void* data, size_t bytes);

// Fingerprint of memory. Lines are checked in steps, in an order in which neighbours are far apart.
// Of N lines, 5 N / r steps meet any r lines in a row, and N steps meet each line once. A column is
// met as soon as a row, since it is every r-th line, or a part of every r-th.
class Fingerprint {
public:
  static constexpr size_t line = 64;

  Fingerprint() = default;
  Fingerprint(const void* data, size_t bytes);

  // Return the number of steps that check every line once.
  size_t steps() const { return order_.lines; }

  // Return whether the lines of `count` steps are unchanged, from step `first` on and around the
  // end. `data` must be as long as it was.
  bool matches(const void* data, size_t first, size_t count) const;

  // Return whether `count` lines are unchanged, from line `first` of the memory on.
  bool matches_lines(const void* data, size_t first, size_t count) const;

  // Prefetch the first lines that `matches` will read.
  void prefetch(const void* data, size_t first, size_t count) const;

  bool operator==(const Fingerprint& other) const;

  // Return `content_hash` of the memory as it was.
  uint64_t content_hash() const { return content_hash_; }

private:
  // Order of the steps: step i is at line i * stride modulo `lines`.
  struct Order {
    size_t lines = 0;
    size_t stride = 0;

    size_t at(size_t step) const { return step * stride % lines; }
    size_t after(size_t place) const {
      place += stride;
      return place < lines ? place : place - lines;
    }
    Order inverse() const;
  };
  static Order even_order(size_t lines);
  bool matches_until_end(const std::byte* data, size_t first, size_t count) const;

  size_t bytes_ = 0;
  uint64_t content_hash_ = 0;
  Order order_;
  std::shared_ptr<const uint16_t[]> hashes_; // in the order of the steps
};

} // namespace torchmdla
