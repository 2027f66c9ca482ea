#include "available_cpus.h"

#include "open_file.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include <sched.h>

namespace torchmdla {

namespace {

// The kernel's period in microseconds, which applies if a file does not specify another one.
constexpr double default_period = 100'000;

// Return the content of a file, or an empty string if it does not exist or is not readable.
std::string text_of(const std::string& path) {
  std::string text;
  try {
    const OpenFile file(path);
    std::array<char, 4096> part{};
    while (const auto count = file.read(text.size(), std::as_writable_bytes(std::span(part))))
      text.append(part.data(), count);
  } catch (const FileProblem&) {
    text.clear();
  }
  return text;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const auto end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

bool contains(std::string_view list, std::string_view entry) {
  const auto entries = split(list, ',');
  return std::ranges::find(entries, entry) != entries.end();
}

// Return the microseconds at the beginning of `text`, or nullopt without a number above 0 (as in
// "max").
std::optional<double> microseconds(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number <= 0) return std::nullopt;
  return static_cast<double>(number);
}

std::optional<double> ratio(std::string_view quota, std::string_view period) {
  const auto time = microseconds(quota);
  if (!time) return std::nullopt;
  return *time / microseconds(period).value_or(default_period);
}

// Return the limit of the group in `folder` itself, in CPUs.
std::optional<double> limit_of_version_2(const std::string& folder) {
  const auto text = text_of(folder + "/cpu.max");
  const auto quota = std::string_view(text).substr(0, text.find(' '));
  return ratio(quota, std::string_view(text).substr(std::min(text.size(), quota.size() + 1)));
}

std::optional<double> limit_of_version_1(const std::string& folder) {
  return ratio(text_of(folder + "/cpu.cfs_quota_us"), text_of(folder + "/cpu.cfs_period_us"));
}

// A version of control groups: the type of its file systems, and the controller that quotas belong
// to. Version 2 has one hierarchy for all controllers, which is listed without any.
struct Version {
  std::string_view file_system, controller;
  std::optional<double> (*limit)(const std::string& folder);
};

constexpr Version versions[] = {
    {"cgroup2", "", limit_of_version_2},
    {"cgroup", "cpu", limit_of_version_1},
};

// Return the group of this process in the hierarchy that quotas belong to (cgroups(7)), or nullopt
// if there is no such hierarchy. Lines are `number:controllers:path`.
std::optional<std::string> group_of(const Version& version, std::string_view listed) {
  for (const auto line : split(listed, '\n')) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    if (contains(line.substr(first + 1, second - first - 1), version.controller))
      return std::string(line.substr(second + 1));
  }
  return std::nullopt;
}

// Mount of a hierarchy. Its group `root`, with the groups below, appears as the folder `point`.
struct Mount {
  std::string root, point;
};

// Replace three octal digits by their character. /proc writes spaces and the like as such digits.
std::string unescaped(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    int code = 0;
    const auto* const digits = text.data() + i + 1;
    if (text[i] == '\\' && i + 3 < text.size() &&
        std::from_chars(digits, digits + 3, code, 8).ptr == digits + 3) {
      plain += static_cast<char>(code);
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

// Return the mounts of a version. Lines are `id parent device root point options [fields] - type
// source options` (proc(5)).
std::vector<Mount> mounts_of(const Version& version, std::string_view listed) {
  std::vector<Mount> mounts;
  for (const auto line : split(listed, '\n')) {
    const auto fields = split(line, ' ');
    const auto end = std::ranges::find(fields, "-");
    if (end - fields.begin() < 6 || fields.end() - end < 4 || end[1] != version.file_system)
      continue;
    if (version.controller.empty() || contains(end[3], version.controller))
      mounts.push_back({unescaped(fields[3]), unescaped(fields[4])});
  }
  return mounts;
}

// Return the folder of `group` below the mount's point. It is empty, which means the point itself,
// if the mount does not show the group. A container that has the host's names of groups is an
// example.
std::string below_point(const Mount& mount, const std::string& group) {
  const auto root = mount.root == "/" ? "" : mount.root;
  const bool is_shown = group.starts_with(root + "/") && group.find("/..") == std::string::npos;
  auto path = is_shown ? group.substr(root.size()) : "";
  while (path.ends_with('/'))
    path.pop_back();
  return path;
}

// Return the least limit of the group in `point` + `path` and of its ancestors.
double least_limit(const Version& version, const std::string& point, std::string path) {
  double least = std::numeric_limits<double>::infinity();
  while (true) {
    least = std::min(least, version.limit(point + path).value_or(least));
    if (path.empty()) return least;
    path.resize(path.rfind('/'));
  }
}

int thread_affinity() {
  cpu_set_t set;
  const int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
  return std::max(count > 0 ? count : static_cast<int>(std::thread::hardware_concurrency()), 1);
}

} // namespace

std::optional<int> cgroup_cpus(const std::string& root) {
  const auto groups = text_of(root + "/proc/self/cgroup");
  const auto mounts = text_of(root + "/proc/self/mountinfo");
  double least = std::numeric_limits<double>::infinity();
  for (const auto& version : versions)
    if (const auto group = group_of(version, groups))
      for (const auto& mount : mounts_of(version, mounts))
        least =
            std::min(least, least_limit(version, root + mount.point, below_point(mount, *group)));
  if (least > std::numeric_limits<int>::max()) return std::nullopt;
  return std::max(static_cast<int>(std::ceil(least)), 1);
}

int available_cpus() {
  static const auto quota = cgroup_cpus();
  const int cpus = thread_affinity();
  return quota ? std::min(cpus, *quota) : cpus;
}

} // namespace torchmdla
