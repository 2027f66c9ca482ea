// What memory held, as a hash of each of its cache lines, to be compared a few lines at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace torchmdla {

// Of all bytes, in their order: what finds accidents, not what withstands anybody. Shared by the
// threads of PyTorch's pool.
uint64_t content_hash(const void* data, size_t bytes);

// Lines are looked at in steps, in an order in which neighbours are far apart: of N lines, any r in
// a row are met by 5 N / r steps, and all of them, each once, by N. A column is as soon met as a
// row, since it is every r-th line, or a part of every r-th.
class Fingerprint {
public:
  static constexpr size_t line = 64;

  Fingerprint() = default;
  Fingerprint(const void* data, size_t bytes);

  // The steps until every line was looked at.
  size_t steps() const { return order_.lines; }

  // Whether `count` steps from step `first` on, and after the last the first again, find what was
  // there. `data` must be as long as it was.
  bool holds(const void* data, size_t first, size_t count) const;

  // Fetches what `holds` reads, or the first of it, without waiting.
  void prefetch(const void* data, size_t first, size_t count) const;

  bool operator==(const Fingerprint& other) const;

  // `content_hash` of what memory held.
  uint64_t content_hash() const { return content_hash_; }

private:
  // Step i is at line i * stride, around the end.
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
  bool holds_until_end(const std::byte* data, size_t first, size_t count) const;

  size_t bytes_ = 0;
  uint64_t content_hash_ = 0;
  Order order_;
  std::shared_ptr<const uint16_t[]> hashes_; // in the order of the steps
};

} // namespace torchmdla
