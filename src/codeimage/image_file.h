// Validated file of an image (torchmdla/devices/cpu/codegen/image.py describes the format). Needs
// neither torch nor Python.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace torchmdla {

// Failure to load an image, with the reason.
class ImageError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] void refuse_image(const std::string& reason);

// Distance of segments: the largest page of systems on the machine (Arm, 64 KiB).
#if defined(__aarch64__)
constexpr uint64_t image_page = 65536;
#else
constexpr uint64_t image_page = 4096;
#endif

// Return the next multiple of a page.
constexpr uint64_t up_to_page(uint64_t address) {
  return (address + image_page - 1) / image_page * image_page;
}

// The structures below have the layout of the file.

struct ImageSegment {
  uint32_t offset, file_bytes, address, memory_bytes;

  uint64_t end() const { return uint64_t(address) + memory_bytes; }
  bool contains(uint64_t from, uint64_t bytes) const {
    return from >= address && from + bytes <= end();
  }
};

struct ImageTable {
  uint32_t offset, count;
};

struct ImageRange {
  uint32_t address, bytes;
};

struct ImageHeader {
  char magic[8];
  uint32_t version, machine;
  std::array<ImageSegment, 3> segments; // code, constants, data
  ImageTable imports, symbols, fixups, names;
  ImageRange unwinding;
};

struct ImageImport {
  uint32_t name, word;
};

struct ImageSymbol {
  uint32_t name, address, size;
};

using ImageFixup = uint32_t;

static_assert(std::endian::native == std::endian::little && sizeof(ImageHeader) == 104);

// The parts of a file. Every number in them has been validated.
class ImageFile {
public:
  // Parse and validate `data`, which must outlive this object.
  explicit ImageFile(std::span<const std::byte> data);

  const ImageSegment& code() const { return header_.segments[0]; }
  const ImageSegment& constants() const { return header_.segments[1]; }
  const ImageSegment& data() const { return header_.segments[2]; }
  std::span<const std::byte> content(const ImageSegment& segment) const {
    return data_.subspan(segment.offset, segment.file_bytes);
  }
  const ImageRange& unwinding() const { return header_.unwinding; } // a range of the constants
  uint64_t end() const { return up_to_page(data().end()); }         // end of its address range

  const std::vector<ImageImport>& imports() const { return imports_; }
  const std::vector<ImageSymbol>& symbols() const { return symbols_; } // sorted by name
  const std::vector<ImageFixup>& fixups() const { return fixups_; }
  std::string name(uint32_t offset) const;

private:
  void read_header();
  void check_order() const;
  void check_addresses() const;
  void check_names() const;
  void check_words() const;
  template <class Entry> std::vector<Entry> entries(const ImageTable& table) const;
  template <class Entries, class Word> void check_table(const Entries& entries, Word word) const;
  const ImageSegment* segment_of(uint64_t word) const;
  uint64_t fixed(uint64_t word) const;

  std::span<const std::byte> data_;
  ImageHeader header_;
  std::vector<ImageImport> imports_;
  std::vector<ImageSymbol> symbols_;
  std::vector<ImageFixup> fixups_;
};

} // namespace torchmdla
