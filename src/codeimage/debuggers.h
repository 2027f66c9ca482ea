// Names of loaded functions for debuggers and profilers. Needs neither torch nor Python.
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

// Registration of `symbols`, which are in `code`, with gdb while it lives (gdb's "JIT Compilation
// Interface"). With TORCHMDLA_PERF_MAP=1 perf receives them, too.
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
