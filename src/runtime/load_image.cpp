#include "load_image.h"

#include "memory.h"

namespace torchmdla {

namespace {

struct CountedImage {
  CountedImage(std::span<const std::byte> data, const Image::Resolver& resolve)
      : image(data, resolve), counted(static_cast<int64_t>(image.bytes()), memory_use().code) {}

  Image image;
  const CountedBytes counted;
};

} // namespace

std::shared_ptr<Image> load_image(std::span<const std::byte> data, const Image::Resolver& resolve) {
  const auto counted_image = std::make_shared<CountedImage>(data, resolve);
  return {counted_image, &counted_image->image};
}

} // namespace torchmdla
