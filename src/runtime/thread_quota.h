// PyTorch's intra-op threads and the quota of the process's control groups, which PyTorch does not
// ask for: it starts with a thread for each core. Threads beyond the quota do no more work, and the
// system stops all of them together when the time of a period is used up.
#pragma once

namespace torchmdla {

// Before a range is shared: takes the calling thread's number of threads down to the quota, once.
// A number that the program or a variable chose stays.
void keep_to_quota();

// The same with a quota of so many CPUs.
void keep_to_quota(int cpus);

} // namespace torchmdla
