#include "group_report.h"

#include "base/forks.h"
#include "compilation_group.h"
#include "memory_limit.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>

namespace torchmdla {

namespace {

struct LiveGroups {
  std::mutex mutex;
  std::set<CompilationGroup*> groups; // guarded by mutex
  CallTotals calls_of_dead_groups;    // sum over groups that have left; guarded by mutex
};

// Return the registry. It is never destroyed, because groups may outlive statics at process exit.
LiveGroups& live_groups() {
  static auto& instance = *new LiveGroups;
  return instance;
}

void add_calls(CallTotals& totals, const CompilationGroup& group) {
  const auto calls = group.calls();
  totals.compiled += calls.compiled;
  totals.recorded += calls.recorded;
}

} // namespace

int64_t next_group_number() {
  static std::atomic<int64_t> next{0};
  return next.fetch_add(1, std::memory_order_relaxed);
}

void register_group(CompilationGroup* group) {
  const ForkSafeLock guard(live_groups().mutex);
  live_groups().groups.insert(group);
}

void unregister_group(CompilationGroup* group) {
  const ForkSafeLock guard(live_groups().mutex);
  live_groups().groups.erase(group);
  add_calls(live_groups().calls_of_dead_groups, *group);
}

// Return all living groups, so that callers need not hold the list's lock. A group's own lock must
// not be taken under it: under a group's lock, groups of a division may be made and destroyed.
std::vector<std::shared_ptr<CompilationGroup>> living_groups() {
  std::vector<std::shared_ptr<CompilationGroup>> groups;
  const ForkSafeLock guard(live_groups().mutex);
  for (auto* group : live_groups().groups)
    // The pointer is null while a group is constructed, or destroyed and waiting for the lock.
    if (auto shared = group->weak_from_this().lock()) groups.push_back(std::move(shared));
  return groups;
}

std::vector<GroupReport> group_reports(const std::optional<std::set<int64_t>>& numbers) {
  std::vector<GroupReport> reports;
  for (const auto& group : living_groups())
    if (!numbers || numbers->count(group->number())) reports.push_back(group->report());
  std::sort(reports.begin(), reports.end(),
            [](const GroupReport& a, const GroupReport& b) { return a.number < b.number; });
  return reports;
}

std::vector<GroupCounts> group_counts() {
  std::vector<GroupCounts> counts;
  for (const auto& group : living_groups())
    counts.push_back(group->counts());
  return counts;
}

// Return the totals. They include groups that are being destroyed, which wait for the lock before
// they leave.
CallTotals call_totals() {
  const ForkSafeLock guard(live_groups().mutex);
  auto totals = live_groups().calls_of_dead_groups;
  for (const auto* group : live_groups().groups)
    add_calls(totals, *group);
  return totals;
}

void prepare_groups(int64_t first) {
  if (!are_any_packaged()) return;
  for (const auto& group : living_groups())
    if (group->number() >= first) group->prepare();
  enforce_memory_limit();
}

void keep_inputs(bool on) {
  settings().keep_inputs = on;
  if (on) return;
  for (const auto& group : living_groups())
    group->forget_inputs();
}

} // namespace torchmdla
