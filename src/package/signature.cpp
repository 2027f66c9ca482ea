#include "signature.h"

#include "base/sealed_block.h"
#include "base/sha256.h"

#include <algorithm>
#include <iomanip>
#include <sstream>
#include <string_view>

namespace torchmdla {

namespace {

// Must equal the format in torchmdla/compile_service/signatures.py.
constexpr BlockFormat signature_format{"torchmdla-sig", 1, "a signature"};

// Return the first digits of a key's digest, enough to distinguish it from other keys.
std::string short_number(std::span<const std::byte> digest) {
  constexpr size_t shown = 8;
  std::ostringstream text;
  text << std::hex << std::setfill('0');
  for (const auto byte : digest.first(shown))
    text << std::setw(2) << std::to_integer<int>(byte);
  return text.str();
}

template <size_t count> std::array<std::byte, count> next_bytes(ByteReader& reader) {
  std::array<std::byte, count> bytes;
  std::ranges::copy(reader.bytes(count), bytes.begin());
  return bytes;
}

} // namespace

void check_signature(std::span<const std::byte> record, const SignedKind& kind,
                     std::span<const std::byte> content, const std::vector<PublicKey>& keys) {
  const std::string name(kind.name);
  ByteReader reader(content_of(record, signature_format));
  const auto number = next_bytes<sizeof(Digest)>(reader);
  const auto signature = next_bytes<sizeof(Ed25519Signature)>(reader);
  if (!reader.at_end()) throw BadBytes(name + "'s signature has extra bytes");
  const auto key =
      std::ranges::find_if(keys, [&](const auto& key) { return sha256(key) == number; });
  if (key == keys.end())
    throw BadBytes(name + " is signed by key " + short_number(number) +
                   ", which is not a trusted key");
  const auto head = std::as_bytes(std::span(kind.label));
  std::vector<std::byte> message(head.begin(), head.end());
  message.insert(message.end(), content.begin(), content.end());
  if (!signature_checker()(signature, message, *key))
    throw BadBytes(name + "'s signature is not that of its content by key " + short_number(number));
}

} // namespace torchmdla
