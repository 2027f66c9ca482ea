// Files of public keys. Packages that are signed by their owners are trusted.
#pragma once

#include "ed25519.h"

#include <string>
#include <string_view>
#include <vector>

namespace torchmdla {

// Return the Ed25519 key in the text of a PEM file (SubjectPublicKeyInfo: RFC 8410, RFC 7468).
// Throw std::runtime_error, which describes the problem, if it does not contain exactly one.
PublicKey public_key_in(std::string_view pem);

// Return the keys in `paths`: files, or folders, of which all files that end in ".pem" are read.
// Throw FileProblem if a file cannot be read, is not such a key, or may have been written by a user
// other than this one and root. Throw it also if `paths` or a folder has no keys.
std::vector<PublicKey> read_public_keys(const std::vector<std::string>& paths);

} // namespace torchmdla
