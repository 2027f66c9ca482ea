#include "image.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace torchmdla {

namespace {

// --- the format ---

constexpr char image_magic[8] = "mdlaimg";
constexpr uint32_t image_version = 1;
constexpr uint32_t image_page = 4096;
// All of an image is within reach of its instructions.
constexpr uint64_t image_reach = uint64_t(1) << 31;
#if defined(__x86_64__)
constexpr uint32_t own_machine = 62;
#elif defined(__aarch64__)
constexpr uint32_t own_machine = 183;
#else
constexpr uint32_t own_machine = 0;
#endif

enum { code_segment, constants_segment, data_segment, segment_count };
constexpr const char* segment_names[] = {"code", "constants", "data"};
constexpr int segment_protections[] = {PROT_READ | PROT_EXEC, PROT_READ, PROT_READ | PROT_WRITE};

struct ImageSegment {
  uint32_t offset, file_bytes, address, memory_bytes;

  uint64_t end() const { return uint64_t(address) + memory_bytes; }
  bool holds(uint64_t from, uint64_t bytes) const {
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
  std::array<ImageSegment, segment_count> segments;
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

// They are read as they are in the file.
static_assert(std::endian::native == std::endian::little && sizeof(ImageHeader) == 104);

// --- what is found in it ---

[[noreturn]] void refuse(const std::string& reason) {
  throw ImageError("the image is damaged: " + reason);
}

void demand(bool holds, const char* reason) {
  if (!holds) refuse(reason);
}

[[noreturn]] void fail(const std::string& what) {
  throw ImageError(what + ": " + std::generic_category().message(errno));
}

uint64_t up_to_page(uint64_t address) {
  return (address + image_page - 1) / image_page * image_page;
}

// An image's parts, once they are found to be where they must.
class ImageFile {
public:
  explicit ImageFile(std::span<const std::byte> data) : data_(data) {
    read_header();
    check_order();
    check_addresses();
    imports_ = entries<ImageImport>(header_.imports);
    fixups_ = entries<ImageFixup>(header_.fixups);
    check_words();
    demand(unwinding().bytes == 0 ||
               segment(constants_segment).holds(unwinding().address, unwinding().bytes),
           "its unwind table is not in the constants");
  }

  const ImageSegment& segment(size_t number) const { return header_.segments[number]; }
  std::span<const std::byte> content(size_t number) const {
    return data_.subspan(segment(number).offset, segment(number).file_bytes);
  }
  uint64_t end() const { return up_to_page(header_.segments.back().end()); }
  const ImageRange& unwinding() const { return header_.unwinding; }

  const std::vector<ImageImport>& imports() const { return imports_; }
  const std::vector<ImageFixup>& fixups() const { return fixups_; }

  // By name.
  std::vector<CodeSymbol> symbols() const {
    std::vector<CodeSymbol> found;
    for (const auto& symbol : entries<ImageSymbol>(header_.symbols)) {
      demand(segment(code_segment).holds(symbol.address, symbol.size),
             "a symbol lies outside of the code");
      found.push_back({name(symbol.name), symbol.address, symbol.size});
      demand(found.size() == 1 || found[found.size() - 2].name < found.back().name,
             "its symbols are not sorted by name");
    }
    return found;
  }

  std::string name(uint32_t offset) const {
    const auto names = data_.subspan(header_.names.offset, header_.names.count);
    demand(offset < names.size(), "a name begins outside of the names");
    const auto* start = reinterpret_cast<const char*>(names.data()) + offset;
    const size_t length = strnlen(start, names.size() - offset);
    demand(length < names.size() - offset, "a name does not end");
    demand(length > 0, "a name is empty");
    demand(std::all_of(start, start + length, [](char c) { return c > ' ' && c < '\x7f'; }),
           "a name has characters that names do not have");
    return {start, length};
  }

private:
  void read_header() {
    demand(data_.size() >= sizeof header_, "it is shorter than its header");
    std::memcpy(&header_, data_.data(), sizeof header_);
    demand(std::memcmp(header_.magic, image_magic, sizeof image_magic) == 0, "it is no image");
    if (header_.version != image_version)
      refuse("it has version " + std::to_string(header_.version) + " of the format, not " +
             std::to_string(image_version));
    if (header_.machine != own_machine)
      throw ImageError("the image is for another machine (number " +
                       std::to_string(header_.machine) + " of ELF's)");
  }

  // In the file each part begins where the one before it ends, and the last one ends with the file.
  void check_order() const {
    uint64_t end = sizeof header_;
    const auto follow = [&](uint32_t offset, uint64_t bytes, const char* part) {
      if (offset != end) refuse(std::string("of its parts, ") + part + " has the wrong place");
      end += bytes;
      if (end > data_.size()) refuse(std::string("of its parts, ") + part + " is cut short");
    };
    for (size_t number = 0; number < segment_count; ++number)
      follow(segment(number).offset, segment(number).file_bytes, segment_names[number]);
    follow(header_.imports.offset, header_.imports.count * sizeof(ImageImport), "imports");
    follow(header_.symbols.offset, header_.symbols.count * sizeof(ImageSymbol), "symbols");
    follow(header_.fixups.offset, header_.fixups.count * sizeof(ImageFixup), "fixups");
    follow(header_.names.offset, header_.names.count, "names");
    demand(end == data_.size(), "the file goes on behind its parts");
  }

  void check_addresses() const {
    uint64_t end = 0;
    for (const auto& segment : header_.segments) {
      demand(segment.address % image_page == 0, "a segment's address is no multiple of a page");
      demand(segment.address >= end, "segments overlap");
      demand(segment.file_bytes <= segment.memory_bytes, "a segment is longer in the file");
      end = up_to_page(segment.end());
    }
    demand(end <= image_reach, "it is larger than instructions reach");
    demand(segment(code_segment).memory_bytes > 0, "it has no code");
  }

  // Those that the loader writes.
  void check_words() const {
    check_table(imports_, [](const ImageImport& import) { return import.word; });
    check_table(fixups_, [](ImageFixup word) { return word; });
    for (const auto& import : imports_)
      demand(!std::ranges::binary_search(fixups_, import.word), "an import is a fixup, too");
    for (const auto word : fixups_)
      demand(fixed(word) <= end(), "a fixup points outside of the image");
  }

  template <class Entries, class Word> void check_table(const Entries& entries, Word word) const {
    uint64_t end = 0;
    for (const auto& entry : entries) {
      const uint64_t address = word(entry);
      demand(address % sizeof(uint64_t) == 0, "a word is not aligned");
      demand(address >= end, "words are not sorted by address");
      demand(holder(address) != nullptr, "a word is in none of constants and data");
      end = address + sizeof(uint64_t);
    }
  }

  // The segment whose content in the file has the word at `address`.
  const ImageSegment* holder(uint64_t address) const {
    for (const auto* segment :
         {&header_.segments[constants_segment], &header_.segments[data_segment]})
      if (address >= segment->address &&
          address + sizeof(uint64_t) <= uint64_t(segment->address) + segment->file_bytes)
        return segment;
    return nullptr;
  }

  // What a fixup's word holds in the file.
  uint64_t fixed(uint64_t address) const {
    const auto* segment = holder(address);
    uint64_t value;
    std::memcpy(&value, &data_[segment->offset + (address - segment->address)], sizeof value);
    return value;
  }

  template <class Entry> std::vector<Entry> entries(const ImageTable& table) const {
    std::vector<Entry> copied(table.count);
    if (table.count > 0)
      std::memcpy(copied.data(), data_.data() + table.offset, table.count * sizeof(Entry));
    return copied;
  }

  std::span<const std::byte> data_;
  ImageHeader header_;
  std::vector<ImageImport> imports_;
  std::vector<ImageFixup> fixups_;
};

void check_page_size() {
  const auto page = sysconf(_SC_PAGESIZE);
  if (page <= 0 || image_page % page != 0)
    throw ImageError("images cannot be loaded where pages have " + std::to_string(page) + " bytes");
}

void copy_segments(const ImageFile& file, const Mapping& memory) {
  for (size_t number = 0; number < segment_count; ++number) {
    const auto& segment = file.segment(number);
    memory.protect(segment.address, segment.memory_bytes, PROT_READ | PROT_WRITE);
    std::ranges::copy(file.content(number), memory.at(segment.address));
  }
}

void apply_fixups(const ImageFile& file, const Mapping& memory) {
  for (const auto word : file.fixups()) {
    uint64_t value;
    std::memcpy(&value, memory.at(word), sizeof value);
    value += reinterpret_cast<uintptr_t>(memory.at(0));
    std::memcpy(memory.at(word), &value, sizeof value);
  }
}

void fill_imports(const ImageFile& file, const Mapping& memory, const Image::Resolver& resolve) {
  for (const auto& import : file.imports()) {
    const auto name = file.name(import.name);
    void* const address = resolve(name);
    if (address == nullptr)
      throw ImageError("compiled code calls " + name + ", which this process does not have");
    std::memcpy(memory.at(import.word), &address, sizeof address);
  }
}

void protect_segments(const ImageFile& file, const Mapping& memory) {
  for (size_t number = 0; number < segment_count; ++number) {
    const auto& segment = file.segment(number);
    memory.protect(segment.address, segment.memory_bytes, segment_protections[number]);
  }
  const auto& code = file.segment(code_segment);
  auto* const start = reinterpret_cast<char*>(memory.at(code.address));
  __builtin___clear_cache(start, start + code.memory_bytes);
}

} // namespace

Mapping::Mapping(size_t bytes) : bytes_(bytes) {
  void* const start = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) fail("no memory for an image");
  start_ = static_cast<std::byte*>(start);
}

Mapping::~Mapping() {
  munmap(start_, bytes_);
}

void Mapping::protect(uint64_t address, uint64_t bytes, int protection) const {
  if (bytes > 0 && mprotect(at(address), bytes, protection) != 0)
    fail("an image's memory cannot be protected");
}

Image::Image(std::span<const std::byte> data, const Resolver& resolve) {
  const ImageFile file(data);
  check_page_size();
  symbols_ = file.symbols();
  memory_.emplace(file.end());
  copy_segments(file, *memory_);
  apply_fixups(file, *memory_);
  fill_imports(file, *memory_, resolve);
  protect_segments(file, *memory_);
  for (auto& symbol : symbols_)
    symbol.address += reinterpret_cast<uintptr_t>(memory_->at(0));
  const auto& segment = file.segment(code_segment);
  const auto code = memory_->range(segment.address, segment.memory_bytes);
  if (const auto& [address, bytes] = file.unwinding(); bytes > 0)
    tell_unwinder(memory_->range(address, bytes), code);
  debuggers_.emplace(code, symbols_);
}

void Image::tell_unwinder(std::span<const std::byte> table, std::span<const std::byte> code) {
  try {
    unwinding_.emplace(table, code);
  } catch (const UnwindError& error) {
    refuse(std::string("of its unwind table, ") + error.what());
  }
}

void* Image::symbol(std::string_view name) const {
  const auto found = std::ranges::lower_bound(symbols_, name, {}, &CodeSymbol::name);
  if (found == symbols_.end() || found->name != name) return nullptr;
  return reinterpret_cast<void*>(found->address);
}

} // namespace torchmdla
