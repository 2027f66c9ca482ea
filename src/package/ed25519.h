// Ed25519 signatures (RFC 8032), checked by a library of the system.
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

// Interface to a library that checks signatures.
class SignatureChecker {
public:
  SignatureChecker() = default;
  SignatureChecker(const SignatureChecker&) = delete;
  SignatureChecker& operator=(const SignatureChecker&) = delete;
  virtual ~SignatureChecker() = default;

  // Return whether the owner of `key` signed `message` with `signature`.
  virtual bool accepts(const Ed25519Signature& signature, std::span<const std::byte> message,
                       const PublicKey& key) const = 0;
};

using SonameList = std::vector<std::string>;

// Return a checker that uses the first library in `names` that can be loaded: OpenSSL's libcrypto,
// or libsodium. Return null if no library can be loaded or a function is missing.
std::unique_ptr<const SignatureChecker> libcrypto_checker(const SonameList& names);
std::unique_ptr<const SignatureChecker> libsodium_checker(const SonameList& names);

// Return the checker of this system, which the first call finds: OpenSSL 3 or 1.1.1, or libsodium.
// Throw std::runtime_error, which names the missing libraries, if the system has none of them.
const SignatureChecker& signature_checker();

} // namespace torchmdla
