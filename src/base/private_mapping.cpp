#include "private_mapping.h"

#include "forks.h"
#include "never_destroyed.h"
#include "open_file.h"

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace torchmdla {

namespace {

// Bits of an entry of /proc/self/pagemap (Documentation/admin-guide/mm/pagemap.rst of Linux). A
// page of a file keeps `of_file` until it is written: the copy belongs to the process alone.
constexpr uint64_t present = uint64_t{1} << 63, swapped = uint64_t{1} << 62,
                   of_file = uint64_t{1} << 61;

bool is_written(uint64_t entry) {
  return entry & swapped || ((entry & present) && !(entry & of_file));
}

// Return the entries of `count` pages, or nullopt if the system does not have them. The file is
// opened each time, because a descriptor stays with the process that opened it after a fork.
std::optional<std::vector<uint64_t>> entries_of(const void* pages, size_t count) {
  const int descriptor = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return std::nullopt;
  std::vector<uint64_t> entries(count);
  const auto first = reinterpret_cast<uintptr_t>(pages) / page_size();
  const auto bytes = static_cast<ssize_t>(count * sizeof(uint64_t));
  const auto done = pread(descriptor, entries.data(), static_cast<size_t>(bytes),
                          static_cast<off_t>(first * sizeof(uint64_t)));
  close(descriptor);
  return done == bytes ? std::optional(std::move(entries)) : std::nullopt;
}

// Return whether the system reports a page that was only read as one of its file.
bool is_observable(std::span<const std::byte> mapped) {
  if (mapped.empty()) return false;
  *static_cast<const volatile std::byte*>(mapped.data());
  const auto entry = entries_of(mapped.data(), 1);
  return entry && (entry->front() & present) && (entry->front() & of_file);
}

// Observable mappings, by the address of their last byte.
struct Mappings {
  std::mutex mutex;
  std::map<const std::byte*, std::span<const std::byte>> by_end;
};

Mappings& mappings() {
  static NeverDestroyed<Mappings> instance;
  return *instance;
}

} // namespace

size_t page_size() {
  static const auto size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

PrivateMapping::PrivateMapping(const OpenFile& file) {
  if (file.size() == 0) return;
  void* const start =
      mmap(nullptr, file.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE, file.descriptor(), 0);
  if (start == MAP_FAILED)
    throw FileProblem(file.name() +
                      ": it cannot be mapped: " + std::generic_category().message(errno));
  bytes_ = {static_cast<std::byte*>(start), file.size()};
#ifdef MADV_NOHUGEPAGE
  // A huge page would bring two megabytes into the resident set for one access.
  madvise(start, file.size(), MADV_NOHUGEPAGE);
#endif
  if (!is_observable(bytes_)) return;
  const ForkSafeLock guard(mappings().mutex);
  mappings().by_end.emplace(&bytes_.back(), bytes_);
}

PrivateMapping::~PrivateMapping() {
  if (bytes_.empty()) return;
  {
    const ForkSafeLock guard(mappings().mutex);
    mappings().by_end.erase(&bytes_.back());
  }
  munmap(bytes_.data(), bytes_.size());
}

void PrivateMapping::drop_unwritten_pages() const {
  if (!has_observable_writes(bytes_.data(), bytes_.size())) return;
  const auto count = (bytes_.size() + page_size() - 1) / page_size();
  auto written = written_pages(bytes_.data(), count);
  written.push_back(count);
  size_t first = 0;
  for (const auto page : written) {
    if (first < page)
      madvise(bytes_.data() + first * page_size(), (page - first) * page_size(), MADV_DONTNEED);
    first = page + 1;
  }
}

bool has_observable_writes(const void* data, size_t bytes) {
  const auto* first = static_cast<const std::byte*>(data);
  const ForkSafeLock guard(mappings().mutex);
  const auto next = mappings().by_end.lower_bound(first);
  return next != mappings().by_end.end() && next->second.data() <= first &&
         first + bytes <= next->second.data() + next->second.size();
}

void copy_pages(const void* data, size_t bytes) {
  const auto start = reinterpret_cast<uintptr_t>(data);
  for (auto page = start; page < start + bytes; page = (page / page_size() + 1) * page_size()) {
    // An exchange writes even if the value stays the same.
    const std::atomic_ref<uint8_t> byte(*reinterpret_cast<uint8_t*>(page));
    auto value = byte.load(std::memory_order_relaxed);
    byte.compare_exchange_strong(value, value);
  }
}

void page_out(const void* data, size_t bytes) {
#ifdef MADV_PAGEOUT
  const auto start = reinterpret_cast<uintptr_t>(data);
  const auto first = (start + page_size() - 1) / page_size() * page_size();
  const auto end = (start + bytes) / page_size() * page_size();
  if (first < end) madvise(reinterpret_cast<void*>(first), end - first, MADV_PAGEOUT);
#endif
}

std::vector<size_t> written_pages(const void* pages, size_t count) {
  const auto entries = entries_of(pages, count);
  std::vector<size_t> written;
  for (size_t page = 0; page < count; ++page)
    if (!entries || is_written((*entries)[page])) written.push_back(page);
  return written;
}

} // namespace torchmdla
