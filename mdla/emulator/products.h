// Matrix products of narrow numbers, which are the inner loops of convolutions.
#pragma once

#include <cstdint>

namespace mdla {

// Number of columns in a block.
inline constexpr int64_t kColumnBlock = 32;

// Compute c[m, n] = Σ_k a[m, k] · b[k, n]. All matrices are dense, and `columns` is 1 or a multiple
// of kColumnBlock. The caller ensures that sums fit in int32_t, or in double without rounding.
void product(const float* a, const float* b, float* c, int64_t rows, int64_t depth,
             int64_t columns);
void product(const int16_t* a, const int16_t* b, int32_t* c, int64_t rows, int64_t depth,
             int64_t columns);
void product(const int16_t* a, const int16_t* b, double* c, int64_t rows, int64_t depth,
             int64_t columns);
void product(const int8_t* a, const int8_t* b, int32_t* c, int64_t rows, int64_t depth,
             int64_t columns);
void product(const int8_t* a, const int8_t* b, double* c, int64_t rows, int64_t depth,
             int64_t columns);

} // namespace mdla
