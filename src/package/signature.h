// Who signed a package, or what else is signed (torchmdla/compile_service/signatures.py writes
// signatures).
#pragma once

#include "ed25519.h"

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

namespace torchmdla {

// What is signed: what stands before it in the signed message, so that a signature of one kind is
// none of another, and its name for messages.
struct SignedKind {
  std::string_view label;
  std::string_view name;
};

// As torchmdla/packages/signing.py has it.
inline constexpr SignedKind index_of_package{"torchmdla: the index of a package, version 1\n",
                                             "the package"};

// Throws BadBytes unless `record`, a signature, was made of `content` by the owner of one of the
// keys, and std::runtime_error where signatures cannot be checked.
void check_signature(std::span<const std::byte> record, const SignedKind& kind,
                     std::span<const std::byte> content, const std::vector<PublicKey>& keys);

} // namespace torchmdla
