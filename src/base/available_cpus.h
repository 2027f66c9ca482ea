// Number of CPUs that this process may use, from affinity masks and control groups.
#pragma once

#include <optional>
#include <string>

namespace torchmdla {

// Return the number of CPUs that the calling thread may run on, at most cgroup_cpus(), which is
// read once in a process.
int available_cpus();

// Return the least quota of this process's control group (version 2) and its ancestors, rounded up
// to whole CPUs. Return nullopt if no group is limited. All paths of the system's files begin with
// `root`.
std::optional<int> cgroup_cpus(const std::string& root = "");

} // namespace torchmdla
