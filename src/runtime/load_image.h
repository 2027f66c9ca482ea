// Images that count among what the runtime holds (memory.h).
#pragma once

#include "image.h"

#include <cstddef>
#include <memory>
#include <span>

namespace torchmdla {

// Throws ImageError.
std::shared_ptr<Image> load_image(std::span<const std::byte> data, const Image::Resolver& resolve);

} // namespace torchmdla
