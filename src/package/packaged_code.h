// A specialisation as a package's block of a target has it.
#pragma once

#include "group/packaged.h"
#include "support/byte_reader.h"

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace torchmdla {

// What the specialisations of a target share.
struct PackagedContent {
  std::vector<std::span<const std::byte>> images; // in the order in which specialisations name them
  std::shared_ptr<const void> owner;              // of the images
  std::span<const std::byte> weights;             // packed ones; empty where none are mapped
  std::shared_ptr<const void> weights_owner;
};

// The next specialisation that `reader` has. Throws BadBytes.
std::shared_ptr<const PackagedSpecialisation>
read_specialisation(ByteReader& reader, const std::shared_ptr<const PackagedContent>& content);

} // namespace torchmdla
