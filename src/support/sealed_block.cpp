#include "sealed_block.h"

#include "sha256.h"

#include <algorithm>
#include <string>

namespace torchmdla {

namespace {

constexpr size_t magic_bytes = 16;

uint32_t version_in(std::span<const std::byte> bytes) {
  uint32_t version = 0;
  std::memcpy(&version, bytes.data(), sizeof version);
  return version;
}

} // namespace

std::span<const std::byte> content_of(std::span<const std::byte> block, const BlockFormat& format) {
  const auto refused = [&](const std::string& problem) {
    return BadBytes(std::string(format.kind) + ": " + problem);
  };
  ByteReader reader(block);
  try {
    const auto magic = reader.bytes(magic_bytes);
    const auto padding = magic.subspan(format.magic.size());
    if (std::memcmp(magic.data(), format.magic.data(), format.magic.size()) != 0 ||
        !std::ranges::all_of(padding, [](std::byte byte) { return byte == std::byte{0}; }))
      throw BadBytes("it does not begin as one");
    if (const auto version = version_in(reader.bytes(sizeof(uint32_t))); version != format.version)
      throw BadBytes("it is of version " + std::to_string(version) + ", where version " +
                     std::to_string(format.version) + " is needed");
    const auto digest = reader.bytes(sizeof(Digest));
    const auto sealed = block.subspan(magic_bytes + sizeof(uint32_t) + sizeof(Digest));
    if (!std::ranges::equal(sha256(sealed), digest))
      throw BadBytes("its content does not match its checksum");
    const auto description = reader.count(), content = reader.count();
    reader.bytes(description);
    const auto found = reader.bytes(content);
    if (!reader.at_end()) throw BadBytes("it is longer than it says");
    return found;
  } catch (const BadBytes& error) {
    throw refused(error.what());
  }
}

} // namespace torchmdla
