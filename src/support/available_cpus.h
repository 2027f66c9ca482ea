// How many CPUs this process may use, as affinity masks and control groups say.
#pragma once

#include <optional>
#include <string>

namespace torchmdla {

// As many as the calling thread may run on, and no more than cgroup_cpus(), which is asked once in
// a process.
int available_cpus();

// What the quotas of this process's control groups, of versions 1 and 2, and of those that they are
// in come to, rounded up to whole CPUs; nothing where none is limited. Files of the system are
// looked for in `root`: all paths begin with it.
std::optional<int> cgroup_cpus(const std::string& root = "");

} // namespace torchmdla
