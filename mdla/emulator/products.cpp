#include "products.h"

#include <cstring>
#include <type_traits>

// Attribute that compiles the loops once for each vector extension. The choice is made when the
// library is loaded. Sanitizers, which that code would call, are not ready at that time, so builds
// with them do not use it.
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__) &&   \
    !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define MDLA_VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define MDLA_VECTOR_CLONES
#endif
#define MDLA_INLINE inline __attribute__((always_inline))

namespace mdla {
namespace {

// Number of sums in a vector of 64 bytes.
template <class Wide> constexpr int64_t kLanes = 64 / sizeof(Wide);

template <class T, int64_t lanes> struct VectorOf {
  typedef T type __attribute__((vector_size(lanes * sizeof(T))));
};

template <class To, class From> MDLA_INLINE To converted(From from) {
  return __builtin_convertvector(from, To);
}

// Load a vector and convert it to `Wide`. The conversion goes through all widths between, because
// compilers use vector instructions only for conversions between adjacent widths.
template <class Narrow, class Wide> MDLA_INLINE auto load_wide(const Narrow* from) {
  constexpr int64_t lanes = kLanes<Wide>;
  typename VectorOf<Narrow, lanes>::type narrow;
  std::memcpy(&narrow, from, sizeof narrow);
  using Short = typename VectorOf<int16_t, lanes>::type;
  using Integer = typename VectorOf<int32_t, lanes>::type;
  using Result = typename VectorOf<Wide, lanes>::type;
  if constexpr (std::is_same_v<Narrow, float>)
    return narrow;
  else
    return converted<Result>(converted<Integer>(converted<Short>(narrow)));
}

// Compute a tile of kRows × kColumnBlock sums.
template <int kRows, class Narrow, class Wide>
MDLA_INLINE void tile(const Narrow* a, const Narrow* b, Wide* c, int64_t depth, int64_t columns) {
  using Vector = typename VectorOf<Wide, kLanes<Wide>>::type;
  constexpr int64_t vectors = kColumnBlock / kLanes<Wide>;
  Vector sums[kRows][vectors] = {};
  for (int64_t k = 0; k < depth; ++k) {
    Vector right[vectors];
    for (int64_t v = 0; v < vectors; ++v)
      right[v] = load_wide<Narrow, Wide>(b + k * columns + v * kLanes<Wide>);
    for (int row = 0; row < kRows; ++row) {
      Wide left = static_cast<Wide>(a[row * depth + k]);
      for (int64_t v = 0; v < vectors; ++v)
        sums[row][v] += left * right[v];
    }
  }
  for (int row = 0; row < kRows; ++row)
    std::memcpy(c + row * columns, sums[row], kColumnBlock * sizeof(Wide));
}

// Compute one column. The sum of each row is spread over the lanes of a vector.
template <class Narrow, class Wide>
MDLA_INLINE void column(const Narrow* a, const Narrow* b, Wide* c, int64_t rows, int64_t depth) {
  constexpr int64_t lanes = kLanes<Wide>;
  for (int64_t row = 0; row < rows; ++row) {
    const Narrow* left = a + row * depth;
    typename VectorOf<Wide, lanes>::type sums = {};
    int64_t k = 0;
    for (; k + lanes <= depth; k += lanes)
      sums += load_wide<Narrow, Wide>(left + k) * load_wide<Narrow, Wide>(b + k);
    Wide sum = 0;
    for (; k < depth; ++k)
      sum += static_cast<Wide>(left[k]) * static_cast<Wide>(b[k]);
    for (int64_t lane = 0; lane < lanes; ++lane)
      sum += sums[lane];
    c[row] = sum;
  }
}

template <class Narrow, class Wide>
MDLA_INLINE void all_tiles(const Narrow* a, const Narrow* b, Wide* c, int64_t rows, int64_t depth,
                           int64_t columns) {
  if (columns == 1) return column(a, b, c, rows, depth);
  constexpr int kTileRows = 4;
  for (int64_t n = 0; n < columns; n += kColumnBlock) {
    int64_t m = 0;
    for (; m + kTileRows <= rows; m += kTileRows)
      tile<kTileRows>(a + m * depth, b + n, c + m * columns + n, depth, columns);
    for (; m < rows; ++m)
      tile<1>(a + m * depth, b + n, c + m * columns + n, depth, columns);
  }
}

} // namespace

#define MDLA_PRODUCT(Narrow, Wide)                                                                 \
  MDLA_VECTOR_CLONES void product(const Narrow* a, const Narrow* b, Wide* c, int64_t rows,         \
                                  int64_t depth, int64_t columns) {                                \
    all_tiles(a, b, c, rows, depth, columns);                                                      \
  }

MDLA_PRODUCT(float, float)
MDLA_PRODUCT(int16_t, int32_t)
MDLA_PRODUCT(int16_t, double)
MDLA_PRODUCT(int8_t, int32_t)
MDLA_PRODUCT(int8_t, double)

} // namespace mdla
