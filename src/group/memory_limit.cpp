#include "memory_limit.h"

#include "base/byte_size.h"
#include "base/forks.h"
#include "compilation_group.h"
#include "group_report.h"
#include "packaged.h"
#include "runtime/memory.h"
#include "runtime/packed.h"
#include "statistics.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace torchmdla {

namespace {

constexpr const char* limit_variable = "TORCHMDLA_MEMORY";

int64_t read_environment() {
  const char* value = std::getenv(limit_variable);
  if (!value || !*value) return 0;
  const auto limit = byte_size(value);
  if (!limit)
    TORCH_WARN("torchmdla: ", limit_variable, " is not a size in bytes (1234, 512M, 4G, 1GiB): '",
               value, "'; there is no limit");
  return limit.value_or(0);
}

int64_t limit_of_environment() {
  static const auto limit = read_environment();
  return limit;
}

struct MemoryLimit {
  std::atomic<int64_t> bytes{limit_of_environment()};
  std::atomic<KeepTime> keep{usual_keep_time};
  std::atomic<uint64_t> checked_epoch{0}; // allocation epoch at the last check
  ForkRobustMutex eviction_mutex;
};

// Return the limit. It is never destroyed, because groups may outlive statics at process exit.
MemoryLimit& limit() {
  static auto& instance = *new MemoryLimit;
  return instance;
}

// Return the number of bytes that the limit applies to.
int64_t limited_memory() {
  return memory_use().packed + memory_use().code;
}

struct Candidate {
  uint64_t last_use;
  std::shared_ptr<CompilationGroup> group;
  Specialisations::Entry entry;
};

// Return the specialisations that may lose memory, the least recently used first.
std::vector<Candidate> candidates() {
  const auto epoch = memory_use().allocation_epoch.load();
  const auto now = UseRecord::Clock::now();
  const auto soon = keep_time();
  std::vector<Candidate> result;
  for (const auto& group : living_groups())
    for (const auto& entry : group->compiled()) {
      const auto last_use = entry->use.epoch();
      if (last_use != epoch && !entry->use.is_protected(now, soon))
        result.push_back({last_use, group, entry});
    }
  std::ranges::stable_sort(result, {}, [](const Candidate& candidate) {
    return std::pair(candidate.last_use, candidate.group->number());
  });
  return result;
}

bool is_used_again(const Candidate& candidate) {
  return candidate.entry->use.epoch() != candidate.last_use;
}

// The next two functions return the number of bytes that are freed only when running calls end.

int64_t unpack(Candidate& candidate) {
  constexpr int64_t least = 4096; // smaller packs are a device's handle or mapped weights
  const auto& specialisation = *candidate.entry;
  if (is_used_again(candidate) || specialisation.executable->packed_bytes() < least) return 0;
  specialisation.use.lose(UseRecord::Clock::now());
  ++statistics().memory.unpacked;
  return specialisation.executable->drop_packed();
}

int64_t evict(Candidate& candidate) {
  if (is_used_again(candidate) || !candidate.group->evict(candidate.entry)) return 0;
  ++statistics().memory.evicted;
  const auto bytes = candidate.entry->executable->held_bytes();
  const std::weak_ptr<const Specialisation> evicted = std::exchange(candidate.entry, nullptr);
  return evicted.expired() ? 0 : bytes;
}

void make_room(int64_t max_bytes) {
  if (limited_memory() <= max_bytes) return;
  drop_dead_packs();
  drop_dead_packages();
  int64_t pending_bytes = 0;
  const auto fits = [&] { return limited_memory() - pending_bytes <= max_bytes; };
  auto sorted = candidates();
  for (auto* release : {&unpack, &evict})
    for (auto next = sorted.begin(); next != sorted.end() && !fits(); ++next)
      pending_bytes += release(*next);
  if (!fits()) ++statistics().memory.over_limit;
}

} // namespace

void set_memory_limit(std::optional<int64_t> bytes, KeepTime keep) {
  TORCH_CHECK_VALUE(bytes.value_or(0) >= 0, "memory_limit must not be negative, got ", *bytes);
  limit().keep = keep;
  limit().bytes = bytes ? *bytes : limit_of_environment();
  ++memory_use()
        .allocation_epoch; // so that no specialisation counts as used since the latest growth
  enforce_memory_limit();
}

int64_t memory_limit() {
  return limit().bytes.load(std::memory_order_relaxed);
}

KeepTime keep_time() {
  return limit().keep;
}

void enforce_memory_limit() {
  const auto max_bytes = memory_limit();
  if (max_bytes == 0) return;
  auto& state = limit();
  // The thread that holds the lock checks again if memory has grown meanwhile.
  while (state.checked_epoch.load() != memory_use().allocation_epoch.load()) {
    const std::unique_lock guard(state.eviction_mutex, std::try_to_lock);
    if (!guard) return;
    const auto epoch = memory_use().allocation_epoch.load();
    make_room(max_bytes);
    state.checked_epoch = epoch;
  }
}

} // namespace torchmdla
