#include "model_file.h"

#include "base/open_file.h"
#include "base/sealed_block.h"
#include "error.h"

#include <algorithm>
#include <array>

namespace torchmdla::native {

namespace {

// These must equal the constants in torchmdla/packages/native_file.py.
constexpr BlockFormat model_format{"torchmdla-model", 3, "a model's file"};
constexpr uint64_t file_page = 4096; // alignment of the weights in the file

uint64_t up_to_page(uint64_t offset) {
  return (offset + file_page - 1) / file_page * file_page;
}

std::vector<std::byte> read_sealed(const OpenFile& file) {
  std::array<std::byte, sealed_head_bytes> memory;
  const auto head = std::span(memory).first(file.read(0, memory));
  const auto magic = std::as_bytes(std::span(model_format.magic));
  if (head.size() < magic.size() || !std::ranges::equal(head.first(magic.size()), magic))
    throw BadBytes("it is not a model file of torchmdla; make one with `torchmdla export`");
  const auto bytes = sealed_block_bytes(head, model_format);
  if (bytes > file.size()) throw BadBytes("a model's file: it is cut short");
  std::vector<std::byte> sealed(bytes);
  sealed.resize(file.read(0, sealed));
  return sealed;
}

} // namespace

ModelFile::ModelFile(const std::string& path, bool any_owner) {
  const OpenFile file(path);
  if (file.is_folder()) throw FileProblem(path + ": it is a folder");
  if (const auto problem = file.owner_problem(); !any_owner && !problem.empty())
    throw Error(TMDLA_NOT_TRUSTED, path + ": " + problem);
  try {
    read(file);
  } catch (const BadBytes& error) {
    throw BadBytes(path + ": " + error.what());
  }
}

void ModelFile::read(const OpenFile& file) {
  sealed_ = read_sealed(file);
  const auto begin = std::min(up_to_page(sealed_.size()), file.size());
  const auto bytes = file.size() - begin;
  const auto content = content_of(sealed_, model_format);
  weights_.emplace(file, begin, bytes);
  content_ = read_content(content, bytes, weights_->data());
}

void ModelFile::verify() const {
  for (size_t i = 0; i < content_.weights.size(); ++i) {
    const auto& expected = content_.weights[i];
    if (sha256({weight(i), expected.bytes}) != expected.digest)
      throw BadBytes("weight " + std::to_string(i) + " does not match its checksum");
  }
}

void ModelFile::drop_images() {
  for (auto& target : content_.targets)
    target.images.clear();
  sealed_ = {};
}

} // namespace torchmdla::native
