// Ed25519 signatures (RFC 8032), checked by a library of the system's.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace torchmdla {

using PublicKey = std::array<std::byte, 32>;
using Ed25519Signature = std::array<std::byte, 64>;

// What checks signatures.
class SignatureChecker {
public:
  SignatureChecker() = default;
  SignatureChecker(const SignatureChecker&) = delete;
  SignatureChecker& operator=(const SignatureChecker&) = delete;
  virtual ~SignatureChecker() = default;

  // Whether the owner of `key` made `signature` of `message`.
  virtual bool accepts(const Ed25519Signature& signature, std::span<const std::byte> message,
                       const PublicKey& key) const = 0;
};

using SonameList = std::vector<std::string>;

// By the first library of these names that can be loaded: OpenSSL's, or libsodium. Null where there
// is none.
std::unique_ptr<const SignatureChecker> libcrypto_checker(const SonameList& names);
std::unique_ptr<const SignatureChecker> libsodium_checker(const SonameList& names);

// That of this system, found at the first call: OpenSSL 3 or 1.1.1, or libsodium. Throws
// std::runtime_error where there is none, which says what is missing.
const SignatureChecker& signature_checker();

} // namespace torchmdla
