// Sizes in the form that humans write, as torchmdla/support/limits.py reads them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace torchmdla {

// Return the number of bytes in `1234`, `512M`, `4G` or `1 GiB`. Return nullopt for any other text,
// or if the number is too large.
std::optional<int64_t> byte_size(std::string_view text);

} // namespace torchmdla
