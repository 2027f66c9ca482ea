#include "mapped_contents.h"

#include "base/private_mapping.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

namespace torchmdla {

namespace {

// Size from which contents are verified by pages. A smaller one is verified by lines sooner.
constexpr size_t least_bytes = 64 << 10;

// Least time between two looks. A look takes a few microseconds.
constexpr std::chrono::nanoseconds interval = std::chrono::milliseconds(2);

// Most pages of a look, and most written pages among them. These are compared line by line.
constexpr size_t max_pages = 512, max_written = 32;

} // namespace

size_t bytes_of_lines() {
  return page_size();
}

bool is_mapped_content(const void* data, size_t bytes) {
  return bytes >= least_bytes && has_observable_writes(data, bytes);
}

void MappedContents::add(Fingerprint content, const void* data, size_t bytes) {
  const auto* start = static_cast<const std::byte*>(data);
  const auto skipped = reinterpret_cast<uintptr_t>(start) % page_size();
  const auto pages = (skipped + bytes + page_size() - 1) / page_size();
  copy_pages(data, bytes_of_lines());
  contents_.push_back({std::move(content), start, bytes, num_pages_, pages});
  num_pages_ += pages;
}

bool MappedContents::verify_next() {
  if (contents_.empty()) return true;
  const auto time = std::chrono::steady_clock::now().time_since_epoch().count();
  auto next_time = next_time_.load(std::memory_order_relaxed);
  if (time < next_time || !next_time_.compare_exchange_strong(next_time, time + interval.count(),
                                                              std::memory_order_relaxed))
    return true;
  const auto start = next_page_.load(std::memory_order_relaxed);
  const auto after = std::ranges::upper_bound(contents_, start, {}, &Content::first_page);
  const auto& content = *std::prev(after);
  const auto first = start - content.first_page;
  auto end = std::min(content.num_pages, first + max_pages);
  auto written = written_pages(content.page(first), end - first);
  if (written.size() > max_written) {
    written.resize(max_written);
    end = first + written.back() + 1;
  }
  for (const auto page : written)
    if (!content.is_page_unchanged(first + page)) return false;
  const auto next = content.first_page + end;
  next_page_.store(next < num_pages_ ? next : 0, std::memory_order_relaxed);
  return true;
}

void MappedContents::page_out() const {
  for (const auto& content : contents_)
    torchmdla::page_out(content.data + bytes_of_lines(), content.bytes - bytes_of_lines());
}

const std::byte* MappedContents::Content::page(size_t number) const {
  return data - reinterpret_cast<uintptr_t>(data) % page_size() + number * page_size();
}

bool MappedContents::Content::is_page_unchanged(size_t number) const {
  const auto first = static_cast<size_t>(std::max(page(number), data) - data);
  const auto end = static_cast<size_t>(std::min(page(number + 1), data + bytes) - data);
  const auto line = first / Fingerprint::line;
  const auto end_line = (end + Fingerprint::line - 1) / Fingerprint::line;
  return fingerprint.matches_lines(data, line, end_line - line);
}

} // namespace torchmdla
