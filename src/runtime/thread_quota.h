// Limit of PyTorch's intra-op threads to the quota of the process's control groups. PyTorch ignores
// the quota and starts one thread per core. Threads beyond the quota do no more work. The system
// stops all of them together when the time of a period is used up.
#pragma once

namespace torchmdla {

// Reduce the calling thread's number of threads to the quota, once, before a range is shared. A
// number that the program or an environment variable chose is kept.
void limit_to_quota();

// Reduce it to a quota of `cpus` CPUs.
void limit_to_quota(int cpus);

} // namespace torchmdla
