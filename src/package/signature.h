// Who signed a package (torchmdla/packages/signing.py writes signatures).
#pragma once

#include "ed25519.h"

#include <cstddef>
#include <span>
#include <vector>

namespace torchmdla {

// Throws BadBytes unless `record`, a package's signature, was made of `index` by the owner of one
// of the keys, and std::runtime_error where signatures cannot be checked.
void check_signature(std::span<const std::byte> record, std::span<const std::byte> index,
                     const std::vector<PublicKey>& keys);

} // namespace torchmdla
