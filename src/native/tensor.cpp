#include "tensor.h"

#include "torchmdla/runtime.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
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

Numbers in_order(size_t rank) {
  Numbers order(rank);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

// One dimension of a copy. Strides are in bytes.
struct Loop {
  int64_t size, to, from;
};

// Return the loops of a copy, with the smallest stride of the destination innermost.
std::vector<Loop> loops_of(std::span<const int64_t> to_strides,
                           std::span<const int64_t> from_strides, std::span<const int64_t> sizes,
                           size_t bytes) {
  const auto width = static_cast<int64_t>(bytes);
  std::vector<Loop> loops;
  for (size_t i = 0; i < sizes.size(); ++i)
    if (sizes[i] != 1) loops.push_back({sizes[i], to_strides[i] * width, from_strides[i] * width});
  std::ranges::stable_sort(loops, std::ranges::greater(), &Loop::to);
  return loops;
}

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
  const auto* const entry = find_dtype(dtype);
  return entry ? entry->bytes : 0;
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

Numbers dense_strides(std::span<const int64_t> sizes, std::span<const int64_t> permutation) {
  Numbers strides(sizes.size());
  int64_t step = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    const auto dimension = static_cast<size_t>(permutation[i]);
    strides[dimension] = step;
    step *= std::max<int64_t>(sizes[dimension], 1);
  }
  return strides;
}

Numbers contiguous_strides(std::span<const int64_t> sizes) {
  return dense_strides(sizes, in_order(sizes.size()));
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
  const auto tensor_strides = tensor.strides.empty()
                                  ? contiguous_strides(tensor.sizes)
                                  : Numbers(tensor.strides.begin(), tensor.strides.end());
  for (size_t i = 0; i < tensor_strides.size(); ++i)
    if (tensor.sizes[i] != 1 && tensor_strides[i] != strides[i]) return false;
  return true;
}

void copy_elements(std::byte* to, std::span<const int64_t> to_strides, const std::byte* from,
                   std::span<const int64_t> from_strides, std::span<const int64_t> sizes,
                   size_t element_bytes) {
  if (element_count(sizes) == 0) return;
  copy_loops(to, from, loops_of(to_strides, from_strides, sizes, element_bytes), element_bytes);
}

} // namespace torchmdla::native
