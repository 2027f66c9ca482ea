#include "fingerprint.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <utility>

namespace torchmdla {

namespace {

// Number of lines that are prefetched: a little more than a core waits for at once.
constexpr size_t lines_ahead = 16;

constexpr size_t words_of_line = Fingerprint::line / sizeof(uint64_t);

// Keys of the hash: odd, and without a pattern.
constexpr std::array<uint64_t, words_of_line> keys{
    0x9e3779b97f4a7c15, 0xbf58476d1ce4e5b9, 0x94d049bb133111eb, 0xd6e8feb86659fd93,
    0xa0761d6478bd642f, 0xe7037ed1a0b428db, 0x8ebc6af09c88c6e3, 0x589965cc75374cc3};

// Return the hash of line `place` of `bytes`, as if zeros followed them.
uint64_t mixed_line(const std::byte* data, size_t bytes, size_t place) {
  std::array<uint64_t, words_of_line> words{};
  const auto offset = place * Fingerprint::line;
  // Every call checks lines, so whole ones are read by loads of known width.
  if (bytes - offset >= sizeof words)
    std::memcpy(words.data(), data + offset, sizeof words);
  else
    std::memcpy(words.data(), data + offset, bytes - offset);
  uint64_t mixed = 0;
  for (size_t i = 0; i < words_of_line; i += 2) {
    const auto product =
        static_cast<unsigned __int128>(words[i] ^ keys[i]) * (words[i + 1] ^ keys[i + 1]);
    mixed += static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }
  return mixed;
}

uint16_t short_hash(uint64_t mixed) {
  return static_cast<uint16_t>((mixed * keys[0]) >> 48);
}

uint16_t hash_of_line(const std::byte* data, size_t bytes, size_t place) {
  return short_hash(mixed_line(data, bytes, place));
}

size_t lines_of(size_t bytes) {
  return (bytes + Fingerprint::line - 1) / Fingerprint::line;
}

// Return the sum of `hash(first, last)` over ranges of lines.
template <class Hash> uint64_t sum_over_lines(size_t bytes, Hash hash) {
  constexpr int64_t grain = 1 << 15;
  std::atomic<uint64_t> sum{bytes};
  at::parallel_for(0, static_cast<int64_t>(lines_of(bytes)), grain,
                   [&](int64_t first, int64_t last) {
                     sum += hash(static_cast<size_t>(first), static_cast<size_t>(last));
                   });
  return sum;
}

// Return a line's share of the hash of all lines. It depends on the line's place.
uint64_t placed(uint64_t mixed, size_t place) {
  return (mixed ^ keys[1]) * (2 * static_cast<uint64_t>(place) + 1);
}

// Return the largest quotient in Euclid's algorithm. The smaller it is, the more evenly the
// multiples of `stride` are spread over `lines`. Return SIZE_MAX if the two have a common divisor.
size_t unevenness(size_t lines, size_t stride) {
  size_t most = 0;
  while (stride != 0) {
    most = std::max(most, lines / stride);
    lines = std::exchange(stride, lines % stride);
  }
  return lines == 1 ? most : SIZE_MAX;
}

} // namespace

// Return an order with a stride near the golden section, whose multiples are spread most evenly.
Fingerprint::Order Fingerprint::even_order(size_t lines) {
  constexpr double golden = 0.6180339887498949;
  constexpr size_t candidates = 64, even_enough = 4;
  const auto start = std::max<size_t>(static_cast<size_t>(golden * static_cast<double>(lines)), 1);
  Order best{lines, std::min<size_t>(lines, 1)};
  size_t least = SIZE_MAX;
  for (size_t stride = start; stride < std::min(start + candidates, lines); ++stride) {
    const auto current = unevenness(lines, stride);
    if (current < least) best.stride = stride, least = current;
    if (least <= even_enough) break;
  }
  return best;
}

// Return the order that maps lines to steps. Euclid's algorithm finds the multiple of the stride
// that each remainder is.
Fingerprint::Order Fingerprint::Order::inverse() const {
  auto larger = static_cast<int64_t>(lines), smaller = static_cast<int64_t>(stride);
  int64_t multiple_of_larger = 0, multiple = 1;
  while (smaller > 1) {
    const auto quotient = larger / smaller;
    larger = std::exchange(smaller, larger % smaller);
    multiple_of_larger = std::exchange(multiple, multiple_of_larger - quotient * multiple);
  }
  return {lines,
          static_cast<size_t>(multiple < 0 ? multiple + static_cast<int64_t>(lines) : multiple)};
}

Fingerprint::Fingerprint(const void* data, size_t bytes)
    : bytes_(bytes), order_(even_order(lines_of(bytes))) {
  const auto hashes = std::make_shared<uint16_t[]>(order_.lines);
  // The loop is in the order of memory, which is several times as fast.
  const auto steps = order_.inverse();
  content_hash_ = sum_over_lines(bytes, [&](size_t first, size_t last) {
    uint64_t sum = 0;
    auto step = steps.at(first);
    for (auto place = first; place < last; ++place, step = steps.after(step)) {
      const auto mixed = mixed_line(static_cast<const std::byte*>(data), bytes, place);
      hashes[step] = short_hash(mixed);
      sum += placed(mixed, place);
    }
    return sum;
  });
  hashes_ = hashes;
}

uint64_t content_hash(const void* data, size_t bytes) {
  return sum_over_lines(bytes, [&](size_t first, size_t last) {
    uint64_t sum = 0;
    for (auto place = first; place < last; ++place)
      sum += placed(mixed_line(static_cast<const std::byte*>(data), bytes, place), place);
    return sum;
  });
}

bool Fingerprint::matches(const void* data, size_t first, size_t count) const {
  const auto* start = static_cast<const std::byte*>(data);
  const auto before_end = std::min(count, steps() - first);
  return matches_until_end(start, first, before_end) &&
         matches_until_end(start, 0, count - before_end);
}

bool Fingerprint::matches_until_end(const std::byte* data, size_t first, size_t count) const {
  if (count == 0) return true;
  auto place = order_.at(first), ahead = place;
  const auto fetch = [&] {
    __builtin_prefetch(data + ahead * line);
    ahead = order_.after(ahead);
  };
  for (size_t i = 0; i < std::min(count, lines_ahead); ++i)
    fetch();
  for (size_t i = 0; i < count; ++i, place = order_.after(place)) {
    if (i + lines_ahead < count) fetch();
    if (hashes_[first + i] != hash_of_line(data, bytes_, place)) return false;
  }
  return true;
}

bool Fingerprint::matches_lines(const void* data, size_t first, size_t count) const {
  const auto steps = order_.inverse();
  auto step = steps.at(first);
  for (auto place = first; place < first + count; ++place, step = steps.after(step))
    if (hashes_[step] != hash_of_line(static_cast<const std::byte*>(data), bytes_, place))
      return false;
  return true;
}

void Fingerprint::prefetch(const void* data, size_t first, size_t count) const {
  if (count == 0) return;
  __builtin_prefetch(hashes_.get() + first);
  auto place = order_.at(first);
  for (size_t i = 0; i < std::min(count, lines_ahead); ++i, place = order_.after(place))
    __builtin_prefetch(static_cast<const std::byte*>(data) + place * line);
}

bool Fingerprint::operator==(const Fingerprint& other) const {
  return bytes_ == other.bytes_ &&
         (hashes_ == other.hashes_ ||
          std::equal(hashes_.get(), hashes_.get() + steps(), other.hashes_.get()));
}

} // namespace torchmdla
