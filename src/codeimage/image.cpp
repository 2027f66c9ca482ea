#include "image.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace torchmdla {

namespace {

[[noreturn]] void fail_by_errno(const std::string& what) {
  throw ImageError(what + ": " + std::generic_category().message(errno));
}

void check_page_size() {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (image_page % page != 0)
    throw ImageError("images cannot be loaded where pages have " + std::to_string(page) + " bytes");
}

void copy_segments(const ImageFile& file, const Mapping& memory) {
  for (const auto* segment : {&file.code(), &file.constants(), &file.data()}) {
    memory.protect(*segment, PROT_READ | PROT_WRITE);
    std::ranges::copy(file.content(*segment), memory.at(segment->address));
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
  memory.protect(file.code(), PROT_READ | PROT_EXEC);
  memory.protect(file.constants(), PROT_READ);
  auto* const code = reinterpret_cast<char*>(memory.at(file.code().address));
  __builtin___clear_cache(code, code + file.code().memory_bytes);
}

std::vector<CodeSymbol> symbols_of(const ImageFile& file, const Mapping& memory) {
  std::vector<CodeSymbol> symbols;
  for (const auto& [name, address, size] : file.symbols())
    symbols.push_back({file.name(name), reinterpret_cast<uintptr_t>(memory.at(address)), size});
  return symbols;
}

} // namespace

Mapping::Mapping(size_t bytes) : bytes_(bytes) {
  void* const start = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) fail_by_errno("no memory is left for an image");
  start_ = static_cast<std::byte*>(start);
}

Mapping::~Mapping() {
  munmap(start_, bytes_);
}

void Mapping::protect(const ImageSegment& segment, int protection) const {
  if (segment.memory_bytes > 0 &&
      mprotect(at(segment.address), segment.memory_bytes, protection) != 0)
    fail_by_errno("an image's memory cannot be protected");
}

Image::Image(std::span<const std::byte> data, const Resolver& resolve) {
  check_page_size();
  const ImageFile file(data);
  memory_.emplace(file.end());
  copy_segments(file, *memory_);
  apply_fixups(file, *memory_);
  fill_imports(file, *memory_, resolve);
  protect_segments(file, *memory_);
  const auto code = memory_->range(file.code().address, file.code().memory_bytes);
  if (file.unwinding().bytes > 0) register_unwind_table(file.unwinding(), code);
  symbols_ = symbols_of(file, *memory_);
  debugger_entry_.emplace(code, symbols_);
}

void Image::register_unwind_table(const ImageRange& table, std::span<const std::byte> code) {
  try {
    unwind_table_.emplace(memory_->range(table.address, table.bytes), code);
  } catch (const UnwindError& error) {
    refuse_image(std::string("of its unwind table, ") + error.what());
  }
}

void* Image::symbol(std::string_view name) const {
  const auto match = std::ranges::lower_bound(symbols_, name, {}, &CodeSymbol::name);
  if (match == symbols_.end() || match->name != name) return nullptr;
  return reinterpret_cast<void*>(match->address);
}

} // namespace torchmdla
