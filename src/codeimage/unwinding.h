// Unwind tables, which let exceptions pass through loaded code: device calls throw when memory is
// used up. Needs neither torch nor Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>

namespace torchmdla {

// Error in a malformed table, with the reason.
class UnwindError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Registration of `table` with the C++ runtime while it lives, to unwind the functions in `code`.
// The table is `.eh_frame` as the processor's ABI describes it, in the form that LLVM emits on
// x86-64 and AArch64, followed by four zeros. Its instructions are trusted, as the code is.
class UnwindTable {
public:
  UnwindTable(std::span<const std::byte> table, std::span<const std::byte> code);
  ~UnwindTable();
  UnwindTable(const UnwindTable&) = delete;
  UnwindTable& operator=(const UnwindTable&) = delete;

private:
  const std::byte* start_;
};

} // namespace torchmdla
