// Functions for threads that share a range in chunks, and wait for each other in a loop.
#pragma once

#include <cstdint>

namespace torchmdla {

// Return a quotient of numbers that are not negative, rounded up.
constexpr int64_t ceil_divide(int64_t number, int64_t divisor) {
  return (number + divisor - 1) / divisor;
}

// Tell the processor that the thread waits in a loop.
inline void pause_processor() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

} // namespace torchmdla
