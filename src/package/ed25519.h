// Ed25519 signatures (RFC 8032), checked by a library of the system.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace torchmdla {

using PublicKey = std::array<std::byte, 32>;
using Ed25519Signature = std::array<std::byte, 64>;

// Function that returns whether the owner of `key` signed `message` with `signature`.
using SignatureChecker = std::function<bool(
    const Ed25519Signature& signature, std::span<const std::byte> message, const PublicKey& key)>;

using SonameList = std::vector<std::string>;

// Return a checker that uses the first library in `names` that can be loaded: OpenSSL's libcrypto,
// or libsodium. Return null if no library can be loaded or a function is missing.
SignatureChecker libcrypto_checker(const SonameList& names);
SignatureChecker libsodium_checker(const SonameList& names);

// Return the checker of this system, which the first call finds: OpenSSL 3 or 1.1.1, or libsodium.
// Throw std::runtime_error, which names the missing libraries, if the system has none of them.
const SignatureChecker& signature_checker();

} // namespace torchmdla
