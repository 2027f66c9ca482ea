// A specialisation as a package's block of a target has it.
#pragma once

#include "group/packaged.h"
#include "support/byte_reader.h"

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace torchmdla {

// Images, in the order in which specialisations name them, and what keeps them.
struct PackagedImages {
  std::vector<std::span<const std::byte>> images;
  std::shared_ptr<const void> owner;
};

// The next specialisation that `reader` has. Throws BadBytes.
std::shared_ptr<const PackagedSpecialisation>
read_specialisation(ByteReader& reader, const std::shared_ptr<const PackagedImages>& images);

} // namespace torchmdla
