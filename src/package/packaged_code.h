// A specialisation as a package's block of a target has it.
#pragma once

#include "group/packaged.h"
#include "runtime/memory.h"
#include "support/byte_reader.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace torchmdla {

// What the specialisations of a target share.
struct PackagedContent {
  PackagedContent(std::shared_ptr<const void> owner, int64_t bytes)
      : owner(std::move(owner)), counted(bytes, memory_use().code) {}

  std::vector<std::span<const std::byte>> images; // in the order in which specialisations name them
  const std::shared_ptr<const void> owner;        // of the images
  const CountedBytes counted;                     // those that it owns
  std::span<const std::byte> weights;             // packed ones; empty where none are mapped
  std::shared_ptr<const void> weights_owner;
};

// The next specialisation that `reader` has. Throws BadBytes.
std::shared_ptr<const PackagedSpecialisation>
read_specialisation(ByteReader& reader, const std::shared_ptr<const PackagedContent>& content);

} // namespace torchmdla
