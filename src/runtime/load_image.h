// Images whose bytes are included in the counts of the runtime's memory (memory.h).
#pragma once

#include "codeimage/image.h"
#include "memory.h"

#include <cstddef>
#include <memory>
#include <span>

namespace torchmdla {

// Load an image. Throw ImageError if that is not possible.
inline std::shared_ptr<Image> load_image(std::span<const std::byte> data,
                                         const Image::Resolver& resolve) {
  const auto image = std::make_shared<Image>(data, resolve);
  const auto counted = std::make_shared<CountedBytes>(image->bytes(), memory_use().code);
  return {image.get(), [image, counted](Image*) {}};
}

} // namespace torchmdla
