#include "tensor.h"

#include "torchmdla/runtime.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace torchmdla::native {

namespace {

struct DType {
  int64_t number;
  const char* name;
  size_t bytes;
};

constexpr DType dtypes[] = {
    {TMDLA_UINT8, "uint8", 1},         {TMDLA_INT8, "int8", 1},
    {TMDLA_INT16, "int16", 2},         {TMDLA_INT32, "int32", 4},
    {TMDLA_INT64, "int64", 8},         {TMDLA_FLOAT16, "float16", 2},
    {TMDLA_FLOAT32, "float32", 4},     {TMDLA_FLOAT64, "float64", 8},
    {TMDLA_COMPLEX64, "complex64", 8}, {TMDLA_COMPLEX128, "complex128", 16},
    {TMDLA_BOOL, "bool", 1},           {TMDLA_BFLOAT16, "bfloat16", 2},
};

const DType* find_dtype(int64_t number) {
  const auto* const entry = std::ranges::find(dtypes, number, &DType::number);
  return entry == std::end(dtypes) ? nullptr : entry;
}

// One dimension of a copy. Strides are in bytes.
struct Loop {
  int64_t size, to, from;
};

// Loops of a copy, with the smallest stride of the destination innermost. Loops that continue each
// other are joined.
class Loops {
public:
  Loops(std::span<const int64_t> to_strides, std::span<const int64_t> from_strides,
        std::span<const int64_t> sizes, size_t bytes) {
    if (sizes.size() > dimension_limit)
      throw std::length_error("a tensor has more than 64 dimensions");
    const auto width = static_cast<int64_t>(bytes);
    for (size_t i = 0; i < sizes.size(); ++i)
      if (sizes[i] != 1) insert({sizes[i], to_strides[i] * width, from_strides[i] * width});
    join();
  }

  std::span<const Loop> all() const { return {loops_, count_}; }

private:
  void insert(const Loop& loop) {
    auto place = count_++;
    for (; place > 0 && loops_[place - 1].to < loop.to; --place)
      loops_[place] = loops_[place - 1];
    loops_[place] = loop;
  }

  void join() {
    size_t joined = 0;
    for (size_t i = 1; i < count_; ++i) {
      auto& outer = loops_[joined];
      const auto& inner = loops_[i];
      if (outer.to == inner.to * inner.size && outer.from == inner.from * inner.size)
        outer = {outer.size * inner.size, inner.to, inner.from};
      else
        loops_[++joined] = inner;
    }
    count_ = std::min(count_, joined + 1);
  }

  size_t count_ = 0;
  Loop loops_[dimension_limit];
};

template <size_t bytes> void copy_row(std::byte* to, const std::byte* from, const Loop& loop) {
  for (int64_t i = 0; i < loop.size; ++i)
    std::memcpy(to + i * loop.to, from + i * loop.from, bytes);
}

void copy_loops(std::byte* to, const std::byte* from, std::span<const Loop> loops, size_t bytes) {
  if (loops.empty()) {
    std::memcpy(to, from, bytes);
    return;
  }
  const auto& loop = loops.front();
  if (loops.size() > 1) {
    for (int64_t i = 0; i < loop.size; ++i)
      copy_loops(to + i * loop.to, from + i * loop.from, loops.subspan(1), bytes);
    return;
  }
  const auto width = static_cast<int64_t>(bytes);
  if (loop.to == width && loop.from == width)
    std::memcpy(to, from, static_cast<size_t>(loop.size) * bytes);
  else if (bytes == 1)
    copy_row<1>(to, from, loop);
  else if (bytes == 2)
    copy_row<2>(to, from, loop);
  else if (bytes == 4)
    copy_row<4>(to, from, loop);
  else if (bytes == 8)
    copy_row<8>(to, from, loop);
  else
    copy_row<16>(to, from, loop);
}

} // namespace

size_t element_bytes(int64_t dtype) {
  static constexpr auto widths = [] {
    std::array<uint8_t, 16> bytes{};
    for (const auto& entry : dtypes)
      bytes[static_cast<size_t>(entry.number)] = static_cast<uint8_t>(entry.bytes);
    return bytes;
  }();
  return dtype >= 0 && dtype < static_cast<int64_t>(widths.size()) ? widths[dtype] : 0;
}

std::string dtype_name(int64_t dtype) {
  const auto* const entry = find_dtype(dtype);
  return entry ? entry->name : "dtype " + std::to_string(dtype);
}

std::string sizes_text(std::span<const int64_t> sizes) {
  if (sizes.empty()) return "a scalar";
  std::string text;
  for (const auto size : sizes)
    text += (text.empty() ? "" : "x") + (size < 0 ? "?" : std::to_string(size));
  return text;
}

Dimensions dense_strides(std::span<const int64_t> sizes, std::span<const int64_t> permutation) {
  Dimensions strides(sizes);
  int64_t step = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    const auto dimension = static_cast<size_t>(permutation[i]);
    strides[dimension] = step;
    step *= std::max<int64_t>(sizes[dimension], 1);
  }
  return strides;
}

Dimensions contiguous(std::span<const int64_t> sizes) {
  Dimensions strides(sizes);
  int64_t step = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = step;
    step *= std::max<int64_t>(sizes[i], 1);
  }
  return strides;
}

size_t element_count(std::span<const int64_t> sizes) {
  // The number of bytes must fit into int64_t, too; no element has more than 64 bytes.
  constexpr int64_t most = std::numeric_limits<int64_t>::max() / 64;
  // Size 0 counts as 1 in the check of overflow, because strides are computed that way, too.
  int64_t count = 1;
  for (const auto size : sizes)
    if (size < 0 || __builtin_mul_overflow(count, std::max<int64_t>(size, 1), &count) ||
        count > most)
      throw std::length_error("no tensor has the sizes " + sizes_text(sizes));
  return std::ranges::find(sizes, 0) == sizes.end() ? static_cast<size_t>(count) : 0;
}

bool is_within(std::span<const int64_t> sizes, std::span<const int64_t> strides, size_t count) {
  if (std::ranges::find(sizes, 0) != sizes.end()) return true;
  int64_t last = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    int64_t step = 0;
    if (strides[i] < 0 || __builtin_mul_overflow(sizes[i] - 1, strides[i], &step) ||
        __builtin_add_overflow(last, step, &last))
      return false;
  }
  return static_cast<size_t>(last) < count;
}

bool has_strides(const TensorView& tensor, std::span<const int64_t> strides) {
  const auto tensor_strides =
      tensor.strides.empty() ? contiguous(tensor.sizes) : Dimensions(tensor.strides);
  for (size_t i = 0; i < tensor_strides.size(); ++i)
    if (tensor.sizes[i] != 1 && tensor_strides[i] != strides[i]) return false;
  return true;
}

void copy_elements(std::byte* to, std::span<const int64_t> to_strides, const std::byte* from,
                   std::span<const int64_t> from_strides, std::span<const int64_t> sizes,
                   size_t element_bytes) {
  if (element_count(sizes) == 0) return;
  const Loops loops(to_strides, from_strides, sizes, element_bytes);
  copy_loops(to, from, loops.all(), element_bytes);
}

} // namespace torchmdla::native
