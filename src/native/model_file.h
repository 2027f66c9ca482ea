// A model's file: a sealed block that is read and checked, and weights that are mapped.
#pragma once

#include "content.h"
#include "support/mapped_file.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace torchmdla {
class OpenFile;
}

namespace torchmdla::native {

class ModelFile {
public:
  // With `any_owner` the file may be one that others can write to. Throws FileProblem, BadBytes,
  // and Error where it is one and may not.
  ModelFile(const std::string& path, bool any_owner);

  const Content& content() const { return content_; }
  const std::byte* weight(size_t number) const {
    return weights_->data() + content_.weights[number].offset;
  }

  // Throws BadBytes where a weight is not what its checksum says.
  void verify() const;

  // Frees what only loading needs.
  void drop_images();

private:
  std::vector<std::byte> sealed_; // what was checked: the file may change
  Content content_;
  std::optional<MappedFile> weights_;
};

} // namespace torchmdla::native
