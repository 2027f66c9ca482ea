#include "sealed_block.h"

#include "sha256.h"

#include <algorithm>
#include <limits>
#include <string>

namespace torchmdla {

namespace {

constexpr size_t magic_bytes = 16;

uint32_t version_in(std::span<const std::byte> bytes) {
  uint32_t version = 0;
  std::memcpy(&version, bytes.data(), sizeof version);
  return version;
}

// Read and check the beginning that all blocks of the format share.
void read_kind(ByteReader& reader, const BlockFormat& format) {
  const auto magic = reader.bytes(magic_bytes);
  const auto padding = magic.subspan(format.magic.size());
  if (std::memcmp(magic.data(), format.magic.data(), format.magic.size()) != 0 ||
      !std::ranges::all_of(padding, [](std::byte byte) { return byte == std::byte{0}; }))
    throw BadBytes("it does not begin as one");
  if (const auto version = version_in(reader.bytes(sizeof(uint32_t))); version != format.version)
    throw BadBytes("it is of version " + std::to_string(version) + ", where version " +
                   std::to_string(format.version) + " is needed");
}

// Return the result of `read`. BadBytes that it throws names the kind of the block.
template <class Read> auto named(const BlockFormat& format, Read read) {
  try {
    return read();
  } catch (const BadBytes& error) {
    throw BadBytes(std::string(format.kind) + ": " + error.what());
  }
}

} // namespace

uint64_t sealed_block_bytes(std::span<const std::byte> head, const BlockFormat& format) {
  return named(format, [&] {
    ByteReader reader(head);
    read_kind(reader, format);
    reader.bytes(sizeof(Digest));
    const auto description = reader.count(), content = reader.count();
    constexpr auto most = std::numeric_limits<uint64_t>::max() / 4;
    if (description > most || content > most) throw BadBytes("invalid length");
    return sealed_head_bytes + description + content;
  });
}

std::span<const std::byte> content_of(std::span<const std::byte> block, const BlockFormat& format) {
  return named(format, [&] {
    ByteReader reader(block);
    read_kind(reader, format);
    const auto digest = reader.bytes(sizeof(Digest));
    const auto sealed = block.subspan(magic_bytes + sizeof(uint32_t) + sizeof(Digest));
    if (!std::ranges::equal(sha256(sealed), digest))
      throw BadBytes("its content does not match its checksum");
    const auto description = reader.count(), content = reader.count();
    reader.bytes(description);
    const auto body = reader.bytes(content);
    if (!reader.at_end()) throw BadBytes("it is longer than its length field");
    return body;
  });
}

} // namespace torchmdla
