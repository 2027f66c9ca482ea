// Signatures of packages and of other content (torchmdla/compile_service/signatures.py writes
// them).
#pragma once

#include "ed25519.h"

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

namespace torchmdla {

// Kind of signed content.
struct SignedKind {
  // Prefix of the signed message. It makes a signature of one kind invalid for any other kind.
  std::string_view label;
  std::string_view name; // for error messages
};

// Must equal the label in torchmdla/packages/signing.py.
inline constexpr SignedKind index_of_package{"torchmdla: the index of a package, version 1\n",
                                             "the package"};

// Check that `record` is a signature of `content` by the owner of one of `keys`. Throw BadBytes if
// it is not, and std::runtime_error if this system cannot check signatures.
void check_signature(std::span<const std::byte> record, const SignedKind& kind,
                     std::span<const std::byte> content, const std::vector<PublicKey>& keys);

} // namespace torchmdla
