// Self-checking blocks of bytes: what torchmdla/compiler/checksummed.py writes.
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

// How much of a block tells how long it is.
constexpr size_t sealed_head_bytes = 68;

// How long the block that begins with `head` says that it is. Throws BadBytes where it is another
// kind's or version's.
uint64_t sealed_block_bytes(std::span<const std::byte> head, const BlockFormat& format);

// What an intact block holds. Throws BadBytes where it is another kind's or version's, altered, cut
// short or extended.
std::span<const std::byte> content_of(std::span<const std::byte> block, const BlockFormat& format);

} // namespace torchmdla
