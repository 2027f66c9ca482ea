// Tests of the number of CPUs that a process may use. The files are like those of the kernel.

#include "base/available_cpus.h"
#include "runtime/thread_quota.h"
#include "testing.h"

#include <ATen/Parallel.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <sched.h>

namespace torchmdla {

using testing::in_child;

namespace {

// Temporary tree of files with these paths, which the destructor removes.
class FakeRoot {
public:
  FakeRoot(std::initializer_list<std::pair<std::string_view, std::string_view>> files) {
    for (const auto& [path, content] : files) {
      const auto file = path_ + std::string(path);
      std::filesystem::create_directories(std::filesystem::path(file).parent_path());
      std::ofstream(file) << content;
    }
  }
  ~FakeRoot() { std::filesystem::remove_all(path_); }
  FakeRoot(const FakeRoot&) = delete;
  FakeRoot& operator=(const FakeRoot&) = delete;

  std::optional<int> cpus() const { return cgroup_cpus(path_); }

private:
  static std::string new_folder() {
    auto pattern = (std::filesystem::temp_directory_path() / "torchmdla-cpus-XXXXXX").string();
    TORCH_CHECK(mkdtemp(pattern.data()), "mkdtemp failed");
    return pattern;
  }

  const std::string path_ = new_folder();
};

constexpr std::string_view groups = "/proc/self/cgroup";

} // namespace

TEST(no_files_of_control_groups_are_no_limit) {
  EXPECT(!FakeRoot({}).cpus());
  EXPECT(!FakeRoot({{groups, "0::/\n"}}).cpus());
  EXPECT(!FakeRoot({{groups, "1:cpu:/app\n"}, {"/sys/fs/cgroup/cpu.max", "100000"}}).cpus());
}

TEST(quota_is_rounded_up) {
  const auto cpus = [](std::string_view text) {
    return FakeRoot({{groups, "0::/app\n"}, {"/sys/fs/cgroup/app/cpu.max", text}}).cpus();
  };
  EXPECT_EQUAL(cpus("200000 100000\n").value(), 2);
  EXPECT_EQUAL(cpus("200001 100000\n").value(), 3);
  EXPECT_EQUAL(cpus("1000 100000\n").value(), 1);
  EXPECT_EQUAL(cpus("150000\n").value(), 2);
  EXPECT(!cpus("max 100000\n"));
  EXPECT(!cpus("max\n"));
}

TEST(what_is_no_quota_is_no_limit) {
  for (const auto* const text : {"", "\n", "many 100000\n", "-1 100000\n", "0 100000\n", " "})
    EXPECT(!FakeRoot({{groups, "0::/"}, {"/sys/fs/cgroup/cpu.max", text}}).cpus());
}

TEST(least_quota_of_all_groups_around_counts) {
  const FakeRoot root{{groups, "0::/a/b/c\n"},
                      {"/sys/fs/cgroup/a/cpu.max", "300000 100000"},
                      {"/sys/fs/cgroup/a/b/cpu.max", "max 100000"},
                      {"/sys/fs/cgroup/a/b/c/cpu.max", "200000 50000"}};
  EXPECT_EQUAL(root.cpus().value(), 3);
}

TEST(container_with_names_of_its_own_sees_its_group_as_the_root) {
  EXPECT_EQUAL(
      FakeRoot({{groups, "0::/\n"}, {"/sys/fs/cgroup/cpu.max", "250000 100000"}}).cpus().value(),
      3);
}

TEST(container_with_names_of_the_host_sees_its_group_as_the_root) {
  for (const auto* const group :
       {"0::/docker/0a1b\n", "4:cpu:/\n0::/kubepods/pod 1\n", "0::/../x\n"})
    EXPECT_EQUAL(
        FakeRoot({{groups, group}, {"/sys/fs/cgroup/cpu.max", "150000 50000\n"}}).cpus().value(),
        3);
}

TEST(groups_may_have_spaces_and_colons) {
  const FakeRoot root{
      {groups, "2:cpu,cpuacct:/\n0::/my group:1\n"},
      {"/sys/fs/cgroup/my group:1/cpu.max", "100000 100000"},
      {"/sys/fs/cgroup/cpu.max", "400000 100000"},
  };
  EXPECT_EQUAL(root.cpus().value(), 1);
}

TEST(affinity_mask_limits_cpus) {
  EXPECT(in_child([] {
    const int before = available_cpus();
    EXPECT(before >= 1);
    cpu_set_t set, one;
    EXPECT_EQUAL(sched_getaffinity(0, sizeof set, &set), 0);
    CPU_ZERO(&one);
    for (int cpu = 0; CPU_COUNT(&one) == 0; ++cpu)
      if (CPU_ISSET(cpu, &set)) CPU_SET(cpu, &one);
    EXPECT_EQUAL(sched_setaffinity(0, sizeof one, &one), 0);
    EXPECT_EQUAL(available_cpus(), 1);
  }));
}

TEST(quota_takes_pytorchs_own_number_of_threads_down) {
  EXPECT(in_child([] {
    unsetenv("OMP_NUM_THREADS");
    unsetenv("MKL_NUM_THREADS");
    at::set_num_threads(at::intraop_default_num_threads());
    limit_to_quota(1);
    EXPECT_EQUAL(at::get_num_threads(), 1);
    limit_to_quota(2);
    EXPECT_EQUAL(at::get_num_threads(), 1);
  }));
}

TEST(quota_leaves_a_number_of_threads_that_was_chosen) {
  EXPECT(in_child([] {
    unsetenv("OMP_NUM_THREADS");
    unsetenv("MKL_NUM_THREADS");
    const int chosen = at::intraop_default_num_threads() + 3;
    at::set_num_threads(chosen);
    limit_to_quota(1);
    EXPECT_EQUAL(at::get_num_threads(), chosen);
  }));
}

TEST(quota_leaves_the_number_of_threads_of_a_variable) {
  EXPECT(in_child([] {
    setenv("OMP_NUM_THREADS", "2", 1);
    at::set_num_threads(2);
    limit_to_quota(1);
    EXPECT_EQUAL(at::get_num_threads(), 2);
  }));
}

} // namespace torchmdla
