// Public keys in files, whose owners' packages are trusted.
#pragma once

#include "ed25519.h"

#include <string>
#include <string_view>
#include <vector>

namespace torchmdla {

// The Ed25519 key of a PEM file (SubjectPublicKeyInfo: RFC 8410, RFC 7468). Throws
// std::runtime_error, which says what it holds instead.
PublicKey public_key_in(std::string_view pem);

// The keys of files, and of all files in folders that end in ".pem". Throws FileProblem where one
// cannot be read, is no such key, or may have been written by another user than this one and root,
// and where there are none.
std::vector<PublicKey> read_public_keys(const std::vector<std::string>& paths);

} // namespace torchmdla
