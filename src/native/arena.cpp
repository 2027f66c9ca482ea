#include "arena.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <new>

namespace torchmdla::native {

namespace {

constexpr size_t least_chunk = 1 << 16;
constexpr size_t largest_block = size_t{1} << 47;

} // namespace

void Arena::FreeMemory::operator()(std::byte* memory) const noexcept {
  std::free(memory);
}

// Blocks are multiples of 64 bytes. Up to 256 bytes each multiple is a class. Larger blocks have
// four classes for each power of two.
size_t Arena::class_of(size_t bytes) {
  const size_t units = bytes == 0 ? 1 : (bytes + alignment - 1) / alignment;
  if (units <= 4) return units - 1;
  const auto exponent =
      static_cast<size_t>(std::bit_width(units - 1)) - 1; // 2^e < units <= 2^(e+1)
  const size_t quarter = size_t{1} << (exponent - 2);
  const size_t step = (units - (size_t{1} << exponent) + quarter - 1) / quarter; // 1 to 4
  return 4 * (exponent - 1) + step - 1;
}

size_t Arena::size_of(size_t number) {
  if (number < 4) return (number + 1) * alignment;
  const size_t exponent = number / 4 + 1;
  return ((size_t{1} << exponent) + (number % 4 + 1) * (size_t{1} << (exponent - 2))) * alignment;
}

void* Arena::allocate(size_t bytes) {
  if (bytes > largest_block) throw std::bad_alloc();
  const auto number = class_of(bytes);
  if (auto* const block = free_[number]) {
    free_[number] = block->next;
    return block;
  }
  return carve(size_of(number));
}

void Arena::release(void* block, size_t bytes) noexcept {
  auto& list = free_[class_of(bytes)];
  list = new (block) Free{list};
}

std::byte* Arena::carve(size_t bytes) {
  if (bytes > left_) {
    const auto chunk = std::max({bytes, least_chunk, std::bit_floor(bytes_ / 4)});
    chunks_.reserve(chunks_.size() + 1);
    auto* const memory = static_cast<std::byte*>(std::aligned_alloc(alignment, chunk));
    if (!memory) throw std::bad_alloc();
    chunks_.emplace_back(memory);
    bytes_ += chunk;
    next_ = memory;
    left_ = chunk;
  }
  auto* const block = next_;
  next_ += bytes;
  left_ -= bytes;
  return block;
}

} // namespace torchmdla::native
