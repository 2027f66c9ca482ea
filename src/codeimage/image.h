// Images: linked code that is mapped unchanged. This file and image.cpp need neither torch nor
// Python.
#pragma once

#include "debuggers.h"
#include "image_file.h"
#include "unwinding.h"

#include <functional>
#include <memory>
#include <optional>
#include <string_view>

namespace torchmdla {

// Address range of this process, which its owner unmaps.
class Mapping {
public:
  explicit Mapping(size_t bytes); // without access rights
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  size_t bytes() const { return bytes_; }
  std::byte* at(uint64_t address) const { return start_ + address; }
  std::span<const std::byte> range(uint64_t address, size_t bytes) const {
    return {at(address), bytes};
  }
  void protect(const ImageSegment& segment, int protection) const;

private:
  std::byte* start_;
  size_t bytes_;
};

// An image in this process. No part of it is ever writable and executable at the same time. Users
// of its addresses must hold a shared pointer to it.
class Image {
public:
  // Function that returns the address of a symbol outside of the image, or null if it is unknown.
  using Resolver = std::function<void*(const std::string& name)>;

  // Load the image. All of `data` is validated, except for its instructions.
  Image(std::span<const std::byte> data, const Resolver& resolve);
  Image(const Image&) = delete;
  Image& operator=(const Image&) = delete;

  // Return the address of a function, or null if the image does not have one of that name.
  void* symbol(std::string_view name) const;
  const std::vector<CodeSymbol>& symbols() const { return symbols_; } // sorted by name
  size_t bytes() const { return memory_->bytes(); }                   // size of its address range

private:
  void register_unwind_table(const ImageRange& table, std::span<const std::byte> code);

  std::optional<Mapping> memory_; // destroyed last
  std::optional<UnwindTable> unwind_table_;
  std::vector<CodeSymbol> symbols_;
  std::optional<DebuggerEntry> debugger_entry_;
};

} // namespace torchmdla
