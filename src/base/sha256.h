// SHA-256 (FIPS 180-4).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace torchmdla {

using Digest = std::array<std::byte, 32>;

Digest sha256(std::span<const std::byte> data);

} // namespace torchmdla
