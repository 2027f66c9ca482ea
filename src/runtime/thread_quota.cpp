#include "thread_quota.h"

#include "base/available_cpus.h"

#include <ATen/Parallel.h>

#include <cstdlib>

#include <omp.h>

namespace torchmdla {

namespace {

bool is_set(const char* variable) {
  const char* const value = std::getenv(variable);
  return value && *value;
}

// Return whether PyTorch itself chose its number of threads, which it does not report. Its own
// choice is the machine's cores, or the CPUs of the process's affinity mask.
bool is_own_choice(int threads) {
  static const bool is_configured = is_set("OMP_NUM_THREADS") || is_set("MKL_NUM_THREADS");
  return !is_configured &&
         (threads == at::intraop_default_num_threads() || threads == omp_get_num_procs());
}

} // namespace

void limit_to_quota() {
  static const auto quota = cgroup_cpus();
  if (quota) limit_to_quota(*quota);
}

void limit_to_quota(int cpus) {
  const int threads = at::get_num_threads();
  if (threads > cpus && !at::in_parallel_region() && is_own_choice(threads))
    at::set_num_threads(cpus);
}

} // namespace torchmdla
