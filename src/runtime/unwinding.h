// Lets exceptions pass through loaded code: device calls throw where memory ends. Needs neither
// torch nor Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>

namespace torchmdla {

// A table that is not what it must be; says why.
class UnwindError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// While it lives, the C++ runtime finds in `table` how to leave the functions in `code`:
// `.eh_frame` as the processor's ABI describes it, in the form that LLVM gives it on x86-64, and
// four zeros behind. Its instructions are taken on trust, as the code is.
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
