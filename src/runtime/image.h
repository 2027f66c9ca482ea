// Images: linked code that is mapped as it is. This file and image.cpp need neither torch nor
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

// Memory of this process, which goes with its owner.
class Mapping {
public:
  explicit Mapping(size_t bytes); // that nobody may touch
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

// An image in this process. Nothing of it is ever writable and executable at one time. Whoever has
// addresses of it has a shared pointer to it.
class Image {
public:
  // The address of what is outside of the image; null where there is none.
  using Resolver = std::function<void*(const std::string& name)>;

  // Takes nothing of `data` on trust but what instructions do.
  Image(std::span<const std::byte> data, const Resolver& resolve);
  Image(const Image&) = delete;
  Image& operator=(const Image&) = delete;

  // The address of a function; null where there is none of that name.
  void* symbol(std::string_view name) const;
  const std::vector<CodeSymbol>& symbols() const { return symbols_; } // by name
  size_t bytes() const { return memory_->bytes(); }                   // of its addresses

private:
  void tell_unwinder(const ImageRange& table, std::span<const std::byte> code);

  std::optional<Mapping> memory_; // goes last
  std::optional<UnwindTable> unwinding_;
  std::vector<CodeSymbol> symbols_;
  std::optional<DebuggerEntry> debuggers_;
};

} // namespace torchmdla
