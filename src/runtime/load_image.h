// Images whose bytes are included in the counts of the runtime's memory (memory.h).
#pragma once

#include "image.h"

#include <cstddef>
#include <memory>
#include <span>

namespace torchmdla {

// Load an image. Throw ImageError if that is not possible.
std::shared_ptr<Image> load_image(std::span<const std::byte> data, const Image::Resolver& resolve);

} // namespace torchmdla
