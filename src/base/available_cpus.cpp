#include "available_cpus.h"

#include "open_file.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <span>
#include <thread>

#include <sched.h>

namespace torchmdla {

namespace {

constexpr double no_quota = std::numeric_limits<double>::infinity();

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

// Return the quota of the control group in `folder` itself, in CPUs.
double quota_of(const std::string& folder) {
  double time = 0, period = 100'000; // microseconds; the kernel's period if the file has none
  const auto text = text_of(folder + "/cpu.max");
  return std::sscanf(text.c_str(), "%lf %lf", &time, &period) > 0 && time > 0 ? time / period
                                                                              : no_quota;
}

int thread_affinity() {
  cpu_set_t set;
  const int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
  return std::max(count > 0 ? count : static_cast<int>(std::thread::hardware_concurrency()), 1);
}

} // namespace

// A container with names of its own sees its group as the root. One with the host's names sees it
// there, too, where the walk over the ancestors ends.
std::optional<int> cgroup_cpus(const std::string& root) {
  const auto groups = "\n" + text_of(root + "/proc/self/cgroup");
  const auto line = groups.find("\n0::/");
  if (line == std::string::npos) return std::nullopt;
  const auto start = line + std::size("\n0::") - 1;
  auto group = groups.substr(start, groups.find('\n', start) - start);
  double least = no_quota;
  for (auto end = group.size(); end != std::string::npos; end = group.rfind('/')) {
    group.resize(end);
    least = std::min(least, quota_of(root + "/sys/fs/cgroup" + group));
  }
  if (least > std::numeric_limits<int>::max()) return std::nullopt;
  return std::max(static_cast<int>(std::ceil(least)), 1);
}

int available_cpus() {
  static const auto quota = cgroup_cpus();
  const int cpus = thread_affinity();
  return quota ? std::min(cpus, *quota) : cpus;
}

} // namespace torchmdla
