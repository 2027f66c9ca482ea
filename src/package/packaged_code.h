// Reader of the specialisations in a package's block of a target.
#pragma once

#include "base/byte_reader.h"
#include "group/packaged.h"
#include "runtime/memory.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace torchmdla {

// Data that all specialisations of a target share.
struct PackagedContent {
  PackagedContent(std::shared_ptr<const void> owner, int64_t bytes)
      : owner(std::move(owner)), counted(bytes, memory_use().code) {}

  std::vector<std::span<const std::byte>> images; // specialisations refer to them by index
  const std::shared_ptr<const void> owner;        // owner of the images' memory
  const CountedBytes counted;                     // bytes that `owner` holds
  std::span<const std::byte> weights;             // packed weights; empty if they are not mapped
  std::shared_ptr<const void> weights_owner;
};

// Read the next specialisation. Throw BadBytes if it is malformed.
std::shared_ptr<const PackagedSpecialisation>
read_specialisation(ByteReader& reader, const std::shared_ptr<const PackagedContent>& content);

} // namespace torchmdla
