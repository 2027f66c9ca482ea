// File of a model: a sealed block, which is read and checked, and weights, which are mapped.
#pragma once

#include "base/mapped_file.h"
#include "content.h"

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
  // Open and read the file. Throw FileProblem, BadBytes or Error. Unless `any_owner`, throw Error
  // also if other users may have written the file.
  ModelFile(const std::string& path, bool any_owner);

  const Content& content() const { return content_; }
  const std::byte* weight(size_t number) const {
    return weights_->data() + content_.weights[number].offset;
  }

  // Throw BadBytes if a weight does not match its checksum.
  void verify() const;

  // Free the images, which are needed only while code is loaded.
  void drop_images();

  const std::byte* weights() const { return weights_->data(); }

private:
  void read(const OpenFile& file);

  std::vector<std::byte> sealed_; // copy of the checked bytes, because the file may change
  Content content_;
  std::optional<MappedFile> weights_;
};

} // namespace torchmdla::native
