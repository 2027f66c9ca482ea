// Number formats of the device, and the only rounding rule: to the nearest, halves up, saturating.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

namespace mdla {

// Storage format of a program's numbers. Each tensor of fixed-point numbers has a fraction: the
// stored integer is the value times 2^fraction.
enum class Precision : int64_t { kFloat32, kFixed16, kFixed8, kVariable };

inline int64_t element_bytes(Precision precision) {
  switch (precision) {
  case Precision::kFloat32:
    return 4;
  case Precision::kFixed8:
    return 1;
  default:
    return 2;
  }
}

inline int64_t accumulator_bytes(Precision precision) {
  return precision == Precision::kFloat32 ? 4 : 8;
}

inline constexpr int kLowestFraction = -8, kHighestFraction = 24;

// Interval of the stored numbers of a format.
struct StoredRange {
  double low, high;
};

inline StoredRange stored_range(Precision precision) {
  if (precision == Precision::kFloat32)
    return {-std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};
  double half = precision == Precision::kFixed8 ? 128 : 32768;
  return {-half, half - 1};
}

// Limit to which accumulators saturate when they are shifted or converted. Smaller sums are exact.
inline constexpr double kAccumulatorLimit = 4611686018427387904.0; // 2^62

inline int64_t nearest(double value, double low, double high) {
  double whole = std::floor(value + 0.5);
  if (!(whole >= low)) whole = low; // NaN becomes `low`
  return static_cast<int64_t>(std::min(whole, high));
}

inline int64_t to_fixed(double value, int64_t fraction, double low, double high) {
  return nearest(std::ldexp(value, static_cast<int>(fraction)), low, high);
}

inline double from_fixed(double stored, int64_t fraction) {
  return std::ldexp(stored, -static_cast<int>(fraction));
}

// Return value / 2^shift, rounded. A negative shift multiplies.
inline int64_t shifted(int64_t value, int64_t shift) {
  if (shift > 62) return 0;
  if (shift > 0) return ((value >> (shift - 1)) + 1) >> 1;
  if (shift == 0) return value;
  int bits = static_cast<int>(-std::max<int64_t>(shift, -62)); // at 62, all but 0 saturates
  double limit = std::ldexp(kAccumulatorLimit, -bits);
  if (static_cast<double>(value) >= limit) return static_cast<int64_t>(kAccumulatorLimit);
  if (static_cast<double>(value) <= -limit) return -static_cast<int64_t>(kAccumulatorLimit);
  return value * (int64_t{1} << bits);
}

// Sums of fixed-point numbers wrap around at 64 bits.
inline int64_t added(int64_t left, int64_t right) {
  return static_cast<int64_t>(static_cast<uint64_t>(left) + static_cast<uint64_t>(right));
}
inline float added(float left, float right) {
  return left + right;
}

// Return numerator / denominator, rounded. The denominator is positive.
inline int64_t divided(int64_t numerator, int64_t denominator) {
  __int128 twice = 2 * static_cast<__int128>(numerator) + denominator;
  __int128 by = 2 * static_cast<__int128>(denominator);
  __int128 quotient = twice / by;
  return static_cast<int64_t>(quotient - (twice % by < 0));
}

} // namespace mdla
