#include "public_keys.h"

#include "base/open_file.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <system_error>

namespace torchmdla {

namespace {

constexpr std::string_view pem_begin = "-----BEGIN PUBLIC KEY-----";
constexpr std::string_view pem_end = "-----END PUBLIC KEY-----";

// DER encoding of a SubjectPublicKeyInfo up to the key: a sequence with the algorithm's identifier
// (1.3.101.112, without parameters) and the head of a string of 256 bits (RFC 8410, section 4).
constexpr std::array<unsigned char, 12> der_head{0x30, 0x2a, 0x30, 0x05, 0x06, 0x03,
                                                 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00};

// Number of bytes that are read from a PEM file; a file of one key is always smaller.
constexpr size_t max_pem_bytes = 16384;

// Decode base64 (RFC 4648), and ignore line breaks. Throw std::runtime_error for other characters.
std::vector<unsigned char> from_base64(std::string_view text) {
  constexpr std::string_view alphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<unsigned char> bytes;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    if (c == '\n' || c == '\r' || c == '=') continue;
    const auto digit = alphabet.find(c);
    if (digit == std::string_view::npos) throw std::runtime_error("its base64 is damaged");
    bits = bits << 6 | static_cast<uint32_t>(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes.push_back(static_cast<unsigned char>(bits >> count));
  }
  return bytes;
}

[[noreturn]] void refuse_key(const OpenFile& file, const std::string& problem) {
  throw FileProblem(file.name() + ": " + problem);
}

void check_owner(const OpenFile& file) {
  if (const auto problem = file.owner_problem(); !problem.empty()) refuse_key(file, problem);
}

PublicKey read_public_key(const OpenFile& file) {
  check_owner(file);
  std::string text(max_pem_bytes, '\0');
  text.resize(file.read(0, std::as_writable_bytes(std::span(text))));
  try {
    return public_key_in(text);
  } catch (const std::runtime_error& error) {
    refuse_key(file, error.what());
  }
}

std::vector<PublicKey> read_folder(const OpenFile& folder) {
  check_owner(folder);
  std::vector<std::string> names;
  std::error_code error_code;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path(), error_code))
    if (entry.path().extension() == ".pem") names.push_back(entry.path().filename());
  if (error_code) refuse_key(folder, error_code.message());
  if (names.empty()) refuse_key(folder, "it contains no key (*.pem)");
  std::vector<PublicKey> keys;
  for (const auto& name : names)
    keys.push_back(
        read_public_key(OpenFile(folder.path() + "/" + name, folder.name() + "/" + name)));
  return keys;
}

} // namespace

PublicKey public_key_in(std::string_view pem) {
  const auto begin = pem.find(pem_begin), end = pem.find(pem_end);
  if (pem.find("PRIVATE KEY-----") != std::string_view::npos)
    throw std::runtime_error("it contains a private key, which only the signer should have");
  if (begin == std::string_view::npos || end == std::string_view::npos || end < begin)
    throw std::runtime_error("it holds no public key in PEM");
  if (pem.find(pem_begin, begin + 1) != std::string_view::npos)
    throw std::runtime_error("it holds more than one key");
  const auto start = begin + pem_begin.size();
  const auto der = from_base64(pem.substr(start, end - start));
  PublicKey key;
  if (der.size() != der_head.size() + key.size() ||
      !std::equal(der_head.begin(), der_head.end(), der.begin()))
    throw std::runtime_error("it holds a public key that is not of Ed25519");
  std::transform(der.begin() + der_head.size(), der.end(), key.begin(),
                 [](unsigned char octet) { return std::byte{octet}; });
  return key;
}

std::vector<PublicKey> read_public_keys(const std::vector<std::string>& paths) {
  if (paths.empty()) throw FileProblem("no files of public keys are named");
  std::vector<PublicKey> keys;
  for (const auto& path : paths) {
    const OpenFile file(path);
    if (file.is_folder())
      std::ranges::copy(read_folder(file), std::back_inserter(keys));
    else
      keys.push_back(read_public_key(file));
  }
  return keys;
}

} // namespace torchmdla
