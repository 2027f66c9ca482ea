// Sizes as people write them, as torchmdla/support/limits.py reads them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace torchmdla {

// Bytes, from `1234`, `512M`, `4G` or `1 GiB`; nullopt for what is none of these, or more than
// there can be.
std::optional<int64_t> byte_size(std::string_view text);

} // namespace torchmdla
