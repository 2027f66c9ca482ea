#include "group_report.h"

#include "compilation_group.h"
#include "memory_limit.h"
#include "support/forks.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>

namespace torchmdla {

namespace {

struct LiveGroups {
  std::mutex mutex;
  std::set<CompilationGroup*> groups; // guarded by mutex
  CallTotals calls_of_others;         // of groups that have left; guarded by mutex
};

// Never destroyed: groups may outlive what is destroyed when the process ends.
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

void enter_group(CompilationGroup* group) {
  const Guard guard(live_groups().mutex);
  live_groups().groups.insert(group);
}

void leave_group(CompilationGroup* group) {
  const Guard guard(live_groups().mutex);
  live_groups().groups.erase(group);
  add_calls(live_groups().calls_of_others, *group);
}

// A group's own lock is not taken with that of the list: under the former, groups inside of a
// division may be made and destroyed.
std::vector<std::shared_ptr<CompilationGroup>> living_groups() {
  std::vector<std::shared_ptr<CompilationGroup>> groups;
  const Guard guard(live_groups().mutex);
  for (auto* group : live_groups().groups)
    // None where it is being made, or destroyed: then it waits for the lock.
    if (auto held = group->weak_from_this().lock()) groups.push_back(std::move(held));
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

// Reads groups that are being destroyed, too, which wait for the lock before they leave.
CallTotals call_totals() {
  const Guard guard(live_groups().mutex);
  auto totals = live_groups().calls_of_others;
  for (const auto* group : live_groups().groups)
    add_calls(totals, *group);
  return totals;
}

void prepare_groups(int64_t first) {
  if (!are_any_packaged()) return;
  for (const auto& group : living_groups())
    if (group->number() >= first) group->prepare();
  keep_to_memory_limit();
}

void keep_inputs(bool on) {
  settings().keep_inputs = on;
  if (on) return;
  for (const auto& group : living_groups())
    group->forget_inputs();
}

} // namespace torchmdla
