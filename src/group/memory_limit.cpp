#include "memory_limit.h"

#include "compilation_group.h"
#include "group_report.h"
#include "packaged.h"
#include "runtime/memory.h"
#include "runtime/packed.h"
#include "statistics.h"
#include "support/byte_size.h"
#include "support/forks.h"

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
  std::atomic<uint64_t> checked{0}; // number of growths at the last check
  ProcessMutex making_room;
};

// Return the limit. It is never destroyed, because groups may outlive statics at process exit.
MemoryLimit& limit() {
  static auto& instance = *new MemoryLimit;
  return instance;
}

struct Candidate {
  uint64_t last_use;
  std::shared_ptr<CompilationGroup> group;
  Specialisations::Entry entry;
};

// Return the specialisations that may lose memory, the least recently used first.
std::vector<Candidate> candidates() {
  const auto growth = memory_use().growths.load();
  const auto now = Grace::Clock::now();
  const auto soon = keep_time();
  std::vector<Candidate> found;
  for (const auto& group : living_groups())
    for (const auto& entry : group->compiled()) {
      const auto last_use = entry->last_use.at();
      if (last_use != growth && !entry->grace.lasts(now, soon))
        found.push_back({last_use, group, entry});
    }
  std::ranges::stable_sort(
      found, {}, [](const Candidate& one) { return std::pair(one.last_use, one.group->number()); });
  return found;
}

bool is_used_again(const Candidate& candidate) {
  return candidate.entry->last_use.at() != candidate.last_use;
}

// The next two functions return the number of bytes that are freed only when running calls end.

int64_t unpack(Candidate& candidate) {
  constexpr int64_t least = 4096; // smaller packs are a device's handle or mapped weights
  const auto& one = *candidate.entry;
  if (is_used_again(candidate) || one.executable->packed_bytes() < least) return 0;
  one.unpacked = Grace::Clock::now();
  ++statistics().memory.unpacked;
  return one.executable->drop_packed();
}

int64_t take_out(Candidate& candidate) {
  if (is_used_again(candidate) || !candidate.group->take_out(candidate.entry)) return 0;
  ++statistics().memory.evicted;
  const auto bytes = candidate.entry->executable->held_bytes();
  const std::weak_ptr<const Specialisation> taken = std::exchange(candidate.entry, nullptr);
  return taken.expired() ? 0 : bytes;
}

void make_room(int64_t most) {
  if (limited_memory() <= most) return;
  drop_dead_packs();
  drop_dead_packages();
  int64_t leaving = 0;
  const auto fits = [&] { return limited_memory() - leaving <= most; };
  auto found = candidates();
  for (auto* take : {&unpack, &take_out})
    for (auto next = found.begin(); next != found.end() && !fits(); ++next)
      leaving += take(*next);
  if (!fits()) ++statistics().memory.over_limit;
}

} // namespace

void set_memory_limit(std::optional<int64_t> bytes, KeepTime keep) {
  TORCH_CHECK_VALUE(bytes.value_or(0) >= 0, "memory_limit must not be negative, got ", *bytes);
  limit().keep = keep;
  limit().bytes = bytes ? *bytes : limit_of_environment();
  ++memory_use().growths; // so that no specialisation counts as used since the latest growth
  keep_to_memory_limit();
}

int64_t memory_limit() {
  return limit().bytes.load(std::memory_order_relaxed);
}

KeepTime keep_time() {
  return limit().keep;
}

int64_t limited_memory() {
  return memory_use().packed + memory_use().code;
}

void keep_to_memory_limit() {
  const auto most = memory_limit();
  if (most == 0) return;
  auto& state = limit();
  // The thread that holds the lock checks again if memory has grown meanwhile.
  while (state.checked.load() != memory_use().growths.load()) {
    const std::unique_lock guard(state.making_room, std::try_to_lock);
    if (!guard) return;
    const auto growth = memory_use().growths.load();
    make_room(most);
    state.checked = growth;
  }
}

} // namespace torchmdla
