#include "products.h"

#include <cstring>

// One copy of the loops for each vector extension, chosen when the library is loaded.
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__)
#define MDLA_VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define MDLA_VECTOR_CLONES
#endif
#define MDLA_INLINE inline __attribute__((always_inline))

namespace mdla {
namespace {

constexpr int64_t kLanes = 16;
constexpr int64_t kVectors = kColumnBlock / kLanes;

template <class T> struct VectorOf {
  typedef T type __attribute__((vector_size(kLanes * sizeof(T))));
};

template <class Narrow, class Wide>
MDLA_INLINE typename VectorOf<Wide>::type load_wide(const Narrow* from) {
  typename VectorOf<Narrow>::type narrow;
  std::memcpy(&narrow, from, sizeof narrow);
  return __builtin_convertvector(narrow, typename VectorOf<Wide>::type);
}

// A tile of kRows × kColumnBlock sums.
template <int kRows, class Narrow, class Wide>
MDLA_INLINE void tile(const Narrow* a, const Narrow* b, Wide* c, int64_t depth, int64_t columns) {
  using Vector = typename VectorOf<Wide>::type;
  Vector sums[kRows][kVectors] = {};
  for (int64_t k = 0; k < depth; ++k) {
    Vector right[kVectors];
    for (int64_t v = 0; v < kVectors; ++v)
      right[v] = load_wide<Narrow, Wide>(b + k * columns + v * kLanes);
    for (int row = 0; row < kRows; ++row) {
      Wide left = static_cast<Wide>(a[row * depth + k]);
      for (int64_t v = 0; v < kVectors; ++v)
        sums[row][v] += left * right[v];
    }
  }
  for (int row = 0; row < kRows; ++row)
    std::memcpy(c + row * columns, sums[row], kColumnBlock * sizeof(Wide));
}

template <class Narrow, class Wide>
MDLA_INLINE void all_tiles(const Narrow* a, const Narrow* b, Wide* c, int64_t rows, int64_t depth,
                           int64_t columns) {
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
