#include "image_file.h"

#include <algorithm>
#include <cstring>

namespace torchmdla {

namespace {

constexpr char image_magic[8] = "mdlaimg";
constexpr uint32_t image_version = 1;
// Maximum size of an image, all of which must be within reach of its instructions.
constexpr uint64_t image_reach = uint64_t(1) << 31;

#if defined(__x86_64__)
constexpr uint32_t this_machine = 62;
#elif defined(__aarch64__)
constexpr uint32_t this_machine = 183;
#else
constexpr uint32_t this_machine = 0;
#endif

void require(bool is_valid, const char* reason) {
  if (!is_valid) refuse_image(reason);
}

} // namespace

void refuse_image(const std::string& reason) {
  throw ImageError("the image is damaged: " + reason);
}

ImageFile::ImageFile(std::span<const std::byte> data) : data_(data) {
  read_header();
  check_order();
  check_addresses();
  imports_ = entries<ImageImport>(header_.imports);
  symbols_ = entries<ImageSymbol>(header_.symbols);
  fixups_ = entries<ImageFixup>(header_.fixups);
  check_names();
  check_words();
}

void ImageFile::read_header() {
  require(data_.size() >= sizeof header_, "it is shorter than its header");
  std::memcpy(&header_, data_.data(), sizeof header_);
  require(std::memcmp(header_.magic, image_magic, sizeof image_magic) == 0, "it is not an image");
  if (header_.version != image_version)
    refuse_image("it has version " + std::to_string(header_.version) + " of the format, not " +
                 std::to_string(image_version));
  if (header_.machine != this_machine)
    throw ImageError("the image is for another machine (number " + std::to_string(header_.machine) +
                     " of ELF's)");
}

// Check that each part begins at the end of the previous one, and that the last one ends with the
// file.
void ImageFile::check_order() const {
  uint64_t end = sizeof header_;
  const auto follow = [&](uint32_t offset, uint64_t bytes, const char* part) {
    if (offset != end) refuse_image(std::string("of its parts, ") + part + " has the wrong place");
    end += bytes;
    if (end > data_.size()) refuse_image(std::string("of its parts, ") + part + " is cut short");
  };
  const auto follow_table = [&](const ImageTable& table, uint64_t entry_bytes, const char* part) {
    follow(table.offset, table.count * entry_bytes, part);
  };
  follow(code().offset, code().file_bytes, "code");
  follow(constants().offset, constants().file_bytes, "constants");
  follow(data().offset, data().file_bytes, "data");
  follow_table(header_.imports, sizeof(ImageImport), "imports");
  follow_table(header_.symbols, sizeof(ImageSymbol), "symbols");
  follow_table(header_.fixups, sizeof(ImageFixup), "fixups");
  follow_table(header_.names, 1, "names");
  require(end == data_.size(), "the file goes on behind its parts");
}

void ImageFile::check_addresses() const {
  uint64_t end = 0;
  for (const auto& segment : header_.segments) {
    require(segment.address % image_page == 0,
            "a segment's address is not a multiple of the page size");
    require(segment.address >= end, "segments overlap");
    require(segment.file_bytes <= segment.memory_bytes, "a segment is longer in the file");
    end = up_to_page(segment.end());
  }
  require(end <= image_reach, "it is larger than instructions reach");
  require(code().memory_bytes > 0, "it has no code");
  require(unwinding().bytes == 0 || constants().contains(unwinding().address, unwinding().bytes),
          "its unwind table is not in the constants");
}

void ImageFile::check_names() const {
  std::string last;
  for (const auto& symbol : symbols_) {
    require(code().contains(symbol.address, symbol.size), "a symbol is outside of the code");
    auto next = name(symbol.name);
    require(last < next, "its symbols are not sorted by name");
    last = std::move(next);
  }
  for (const auto& import : imports_)
    name(import.name);
}

std::string ImageFile::name(uint32_t offset) const {
  const auto names = data_.subspan(header_.names.offset, header_.names.count);
  require(offset < names.size(), "a name begins outside of the names");
  const auto* start = reinterpret_cast<const char*>(names.data()) + offset;
  const size_t length = strnlen(start, names.size() - offset);
  require(length < names.size() - offset, "a name does not end");
  require(length > 0, "a name is empty");
  require(std::all_of(start, start + length, [](char c) { return c > ' ' && c < '\x7f'; }),
          "a name has characters that names do not have");
  return {start, length};
}

// Check the words that the loader writes.
void ImageFile::check_words() const {
  check_table(imports_, [](const ImageImport& import) { return import.word; });
  check_table(fixups_, [](ImageFixup word) { return word; });
  for (const auto& import : imports_)
    require(!std::ranges::binary_search(fixups_, import.word), "an import is a fixup, too");
  for (const auto word : fixups_)
    require(fixed(word) <= end(), "a fixup points outside of the image");
}

template <class Entries, class Word>
void ImageFile::check_table(const Entries& entries, Word word) const {
  uint64_t end = 0;
  for (const auto& entry : entries) {
    const uint64_t address = word(entry);
    require(address % sizeof(uint64_t) == 0, "a word is not aligned");
    require(address >= end, "words are not sorted by address");
    require(segment_of(address) != nullptr, "a word is in none of constants and data");
    end = address + sizeof(uint64_t);
  }
}

// Return the segment whose content in the file includes the word, or null.
const ImageSegment* ImageFile::segment_of(uint64_t word) const {
  for (const auto* segment : {&constants(), &data()})
    if (word >= segment->address &&
        word + sizeof(uint64_t) <= uint64_t(segment->address) + segment->file_bytes)
      return segment;
  return nullptr;
}

// Return the value of a fixup's word in the file.
uint64_t ImageFile::fixed(uint64_t word) const {
  const auto* segment = segment_of(word);
  uint64_t value;
  std::memcpy(&value, &data_[segment->offset + (word - segment->address)], sizeof value);
  return value;
}

template <class Entry> std::vector<Entry> ImageFile::entries(const ImageTable& table) const {
  std::vector<Entry> copied(table.count);
  if (table.count > 0)
    std::memcpy(copied.data(), &data_[table.offset], table.count * sizeof(Entry));
  return copied;
}

} // namespace torchmdla
