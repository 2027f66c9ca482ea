// Tells debuggers and profilers the names of loaded functions. Needs neither torch nor Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace torchmdla {

// A function in this process.
struct CodeSymbol {
  std::string name;
  uintptr_t address;
  uint64_t size;
};

// While it lives, gdb knows `symbols`, which lie in `code` (its "JIT Compilation Interface"). With
// TORCHMDLA_PERF_MAP=1 perf is told them, too.
class DebuggerEntry {
public:
  DebuggerEntry(std::span<const std::byte> code, std::span<const CodeSymbol> symbols);
  ~DebuggerEntry();
  DebuggerEntry(const DebuggerEntry&) = delete;
  DebuggerEntry& operator=(const DebuggerEntry&) = delete;

private:
  struct Registered;
  std::unique_ptr<Registered> registered_;
};

} // namespace torchmdla
