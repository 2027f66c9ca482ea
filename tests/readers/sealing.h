// Blocks with correct checksums, so that a fuzzer reaches the code after the check.
#pragma once

#include "base/sealed_block.h"
#include "base/sha256.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace fuzzing {

template <class Number> std::string as_bytes(Number number) {
  return {reinterpret_cast<const char*>(&number), sizeof number};
}

inline std::string digest_of(std::string_view bytes) {
  const auto digest = torchmdla::sha256(std::as_bytes(std::span(bytes)));
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

// Return a sealed block without a description.
inline std::string sealed(const torchmdla::BlockFormat& format, std::string_view content) {
  constexpr size_t kMagicBytes = 16;
  std::string magic(format.magic);
  magic.resize(kMagicBytes);
  const auto rest = as_bytes(uint64_t{0}) + as_bytes(uint64_t{content.size()}).append(content);
  return magic + as_bytes(format.version) + digest_of(rest) + rest;
}

} // namespace fuzzing
