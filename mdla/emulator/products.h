// Matrix products of narrow numbers: the inner loops of convolution.
#pragma once

#include <cstdint>

namespace mdla {

// Columns come in blocks of this many.
inline constexpr int64_t kColumnBlock = 32;

// c[m, n] = Σ_k a[m, k] · b[k, n], all dense; columns is 1 or a multiple of kColumnBlock. The
// caller knows that the sums fit: int32_t holds them, or double holds them without rounding.
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
