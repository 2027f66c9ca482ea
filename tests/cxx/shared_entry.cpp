// Tests of entries that threads share: chunks, waits, failures, and releases of inputs.

#include "runtime/device_calls.h"
#include "runtime/input_releases.h"
#include "testing.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <array>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

namespace torchmdla {

namespace {

constexpr int64_t blocks = 64;
constexpr int threads = 8;
using Numbers = std::array<int64_t, blocks>;

// Constants of kernels: number, grain, barrier, waits, and a wait for the blocks beside.
constexpr std::array<int64_t, 4> first_kernel{0, 1, 0, 0};
constexpr std::array<int64_t, 4> after_barrier{1, 1, 1, 0};
constexpr std::array<int64_t, 4> serial_after_barrier{2, 0, 1, 0};
constexpr std::array<int64_t, 15> after_neighbours{1, 1, 0, 1, 1, blocks, 1, 1,
                                                   8, 0, 8, 1, 8, -8,     16};

class Threads {
public:
  explicit Threads(int number) { at::set_num_threads(number); }
  ~Threads() { at::set_num_threads(before_); }

private:
  const int before_ = at::get_num_threads();
};

void count_up(void* const* operands, int64_t first, int64_t end) {
  auto& numbers = *static_cast<Numbers*>(operands[0]);
  for (int64_t i = first; i < end; ++i)
    ++numbers[i];
}

// Write the sum of a block and of those beside it in the first numbers to the second ones.
void add_neighbours(void* const* operands, int64_t first, int64_t end) {
  const auto& from = *static_cast<const Numbers*>(operands[0]);
  auto& to = *static_cast<Numbers*>(operands[1]);
  for (int64_t i = first; i < end; ++i)
    to[i] = from[i] + (i > 0 ? from[i - 1] : 0) + (i + 1 < blocks ? from[i + 1] : 0);
}

void reverse(void* const* operands, int64_t first, int64_t end) {
  for (int64_t i = first; i < end; ++i)
    (*static_cast<Numbers*>(operands[1]))[i] =
        (*static_cast<const Numbers*>(operands[0]))[blocks - 1 - i];
}

// Run kernels that read the chunks of the same, of neighbouring and of all threads, and a serial
// one.
int32_t entry(void* const* buffers, mdla_member* member, int32_t*) {
  void* const swapped[] = {buffers[1], buffers[0]};
  mdla_share_kernel(member, count_up, buffers, blocks, first_kernel.data());
  mdla_share_kernel(member, add_neighbours, buffers, blocks, after_neighbours.data());
  mdla_share_kernel(member, reverse, swapped, blocks, after_barrier.data());
  mdla_share_kernel(member, add_neighbours, buffers, blocks, serial_after_barrier.data());
  return 0;
}

std::array<Numbers, 2> expected() {
  std::array<Numbers, 2> numbers{};
  for (int64_t i = 0; i < blocks; ++i)
    numbers[0][i] = i * i;
  void* const operands[] = {&numbers[0], &numbers[1]};
  void* const swapped[] = {&numbers[1], &numbers[0]};
  count_up(operands, 0, blocks);
  add_neighbours(operands, 0, blocks);
  reverse(swapped, 0, blocks);
  add_neighbours(operands, 0, blocks);
  return numbers;
}

void check_entry() {
  std::array<Numbers, 2> numbers{};
  for (int64_t i = 0; i < blocks; ++i)
    numbers[0][i] = i * i;
  void* const buffers[] = {&numbers[0], &numbers[1]};
  EXPECT_EQUAL(mdla_share_entry(entry, buffers, blocks), 0);
  EXPECT(numbers == expected());
}

void fail_first(void* const*, int64_t first, int64_t) {
  if (first == 0) throw std::length_error("the first chunk fails");
}

int32_t failing_entry(void* const* buffers, mdla_member* member, int32_t*) {
  mdla_share_kernel(member, fail_first, buffers, blocks, first_kernel.data());
  mdla_share_kernel(member, reverse, buffers, blocks, after_barrier.data());
  return 0;
}

void set_status(void* const* operands, int64_t, int64_t end) {
  if (end == blocks) *static_cast<int32_t*>(operands[0]) = 5;
}

int32_t entry_with_status(void* const*, mdla_member* member, int32_t* status) {
  void* const operands[] = {status};
  mdla_share_kernel(member, set_status, operands, blocks, first_kernel.data());
  return 0;
}

// Kernels that read an input: the last chunk is late.
std::atomic<int> readers_after_release{0};
c10::weak_intrusive_ptr<at::TensorImpl>* watched_input = nullptr;

void read_late(void* const*, int64_t first, int64_t end) {
  if (end == blocks) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  if (watched_input->use_count() == 0) readers_after_release += 1;
}

void expect_released(void* const*, int64_t first, int64_t) {
  if (first == 0) EXPECT_EQUAL(watched_input->use_count(), size_t{0});
}

int32_t reading_entry(void* const* buffers, mdla_member* member, int32_t*) {
  constexpr std::array<int64_t, 4> next{1, 1, 0, 0};
  mdla_share_kernel(member, read_late, buffers, blocks, first_kernel.data());
  mdla_share_kernel(member, expect_released, buffers, blocks, next.data());
  return 0;
}

} // namespace

TEST(threads_that_share_an_entry_wait_for_the_data_that_they_read) {
  const Threads limit(threads);
  for (int call = 0; call < 500; ++call)
    check_entry();
}

TEST(one_thread_and_nested_calls_run_a_shared_entry_alone) {
  {
    const Threads limit(1);
    check_entry();
  }
  const Threads limit(threads);
  at::parallel_for(0, threads, 1, [](int64_t, int64_t) { check_entry(); });
}

TEST(failure_of_a_thread_ends_a_shared_entry) {
  const Threads limit(threads);
  std::array<Numbers, 2> numbers{};
  void* const buffers[] = {&numbers[0], &numbers[1]};
  for (int call = 0; call < 20; ++call)
    EXPECT_THROW(mdla_share_entry(failing_entry, buffers, blocks), std::length_error);
  check_entry();
}

TEST(status_of_a_kernel_is_that_of_a_shared_entry) {
  for (const int number : {1, threads}) {
    const Threads limit(number);
    EXPECT_EQUAL(mdla_share_entry(entry_with_status, nullptr, blocks), 5);
  }
}

TEST(input_is_released_after_all_threads_have_read_it) {
  const Threads limit(threads);
  std::array<c10::IValue, 1> inputs{at::ones(4)};
  c10::weak_intrusive_ptr<at::TensorImpl> input(inputs[0].toTensor().getIntrusivePtr());
  watched_input = &input;
  const std::array<InputRelease, 1> released{{{1, 0}}};
  const InputReleases releases(released, inputs.data());
  EXPECT_EQUAL(mdla_share_entry(reading_entry, nullptr, blocks), 0);
  EXPECT_EQUAL(readers_after_release.load(), 0);
  watched_input = nullptr;
}

} // namespace torchmdla
