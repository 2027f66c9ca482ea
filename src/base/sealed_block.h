// Self-checking blocks of bytes, which torchmdla/compiler/checksummed.py writes.
#pragma once

#include "byte_reader.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace torchmdla {

// A kind of block.
struct BlockFormat {
  std::string_view magic; // at most 16 bytes
  uint32_t version;
  std::string_view kind; // for messages: "a package's index"
};

// Number of bytes at the beginning of a block that determine its length.
constexpr size_t sealed_head_bytes = 68;

// Return the length of the block that begins with `head`, as the head specifies it. Throw BadBytes
// if it has another kind or version.
uint64_t sealed_block_bytes(std::span<const std::byte> head, const BlockFormat& format);

// Return the content of an intact block. Throw BadBytes if it has another kind or version, or was
// altered, cut short or extended.
std::span<const std::byte> content_of(std::span<const std::byte> block, const BlockFormat& format);

} // namespace torchmdla
