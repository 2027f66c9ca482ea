#include "split_program.h"

#include "base/forks.h"
#include "device_calls.h"
#include "kernel_times.h"

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <set>
#include <span>

namespace torchmdla {

namespace {

struct SplitPrograms {
  std::mutex mutex;
  std::map<std::string, StripedDeviceCounts> counts; // guarded by mutex; entries stay
  std::multiset<SplitProgram::Fault> faults;         // guarded by mutex; of programs that live
};

SplitPrograms& split_programs() {
  static auto& instance = *new SplitPrograms;
  return instance;
}

// Fault of the part that has just failed on this thread, null if its device has none. nullopt: no
// part has failed, but a pack may have.
thread_local std::optional<SplitProgram::Fault> failed_part;

int64_t round_up_slot(int64_t bytes) {
  constexpr int64_t alignment = 64;
  return (bytes + alignment - 1) / alignment * alignment;
}

// Run a part until its results are in host memory, where the next part reads them.
int32_t run_part(const SplitProgram::Part& part, const c10::SmallVectorImpl<void*>& values) {
  int32_t status = part.entry(values.data());
  if (status || !part.wait) return status;
  for (auto* result : std::span(values.data(), values.size()).last(part.results)) {
    const auto waited = part.wait(result);
    status = status ? status : waited;
  }
  return status;
}

void count(const StripedDeviceCounts& counts, const SplitProgram::Part& part,
           std::span<const int64_t> symbols) {
  auto& [parts, transfers, bytes] = counts.local();
  parts.fetch_add(1, std::memory_order_relaxed);
  if (!part.transfers) return;
  transfers.fetch_add(part.transfers, std::memory_order_relaxed);
  bytes.fetch_add(part.bytes.at(symbols), std::memory_order_relaxed);
}

} // namespace

std::map<std::string, DeviceCounts> device_counts() {
  const ForkSafeLock guard(split_programs().mutex);
  std::map<std::string, DeviceCounts> result;
  for (const auto& [device, counts] : split_programs().counts)
    counts.for_each([&sums = result[device]](const auto& stripe) {
      sums.parts += stripe[0].load(std::memory_order_relaxed);
      sums.transfers += stripe[1].load(std::memory_order_relaxed);
      sums.bytes += stripe[2].load(std::memory_order_relaxed);
    });
  return result;
}

SplitProgram::SplitProgram(std::vector<Part> parts, std::vector<Polynomial> slots, size_t symbols)
    : parts_(std::move(parts)), slots_(std::move(slots)), symbols_(symbols),
      has_faults_(std::ranges::any_of(parts_, [](const Part& part) { return part.fault; })) {
  const ForkSafeLock guard(split_programs().mutex);
  for (const auto& part : parts_) {
    counts_.push_back(&split_programs().counts[part.device]);
    if (part.fault) split_programs().faults.insert(part.fault);
  }
}

SplitProgram::~SplitProgram() {
  const ForkSafeLock guard(split_programs().mutex);
  for (const auto& part : parts_)
    if (part.fault) split_programs().faults.erase(split_programs().faults.find(part.fault));
}

int32_t SplitProgram::run(void* const* buffers) const {
  const auto* sizes = static_cast<const int64_t*>(buffers[2]);
  const std::span<const int64_t> symbols(sizes, symbols_);
  c10::SmallVector<int64_t, 32> offsets;
  int64_t end = 0, largest = 0;
  for (const auto& slot : slots_) {
    offsets.push_back(end);
    end += round_up_slot(slot.at(symbols));
  }
  for (const auto& part : parts_)
    largest = std::max(largest, part.workspace ? part.workspace(sizes) : part.workspace_bytes);
  auto* memory = static_cast<std::byte*>(thread_workspace(end + largest));

  const auto* packed = static_cast<void* const*>(buffers[1]);
  c10::SmallVector<void*, 128> values;
  c10::SmallVector<void*, 64> packs;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const auto& part = parts_[i];
    packs.clear();
    for (const size_t pack : part.packs)
      packs.push_back(packed[pack]);
    values.assign(buffers_before_arguments, nullptr);
    values[0] = part.context ? part.context : largest ? memory + end : nullptr;
    values[1] = packs.empty() ? nullptr : packs.data();
    values[2] = buffers[2];
    for (const auto& [is_intermediate, index] : part.values)
      values.push_back(is_intermediate ? memory + offsets[index]
                                       : buffers[buffers_before_arguments + index]);
    if (auto* clock = KernelClock::current()) {
      clock->begin_part(part.first_kernel);
      if (part.is_kernel) clock->begin(0);
    }
    if (const auto status = run_part(part, values)) {
      if (has_faults_) failed_part = part.fault;
      return status;
    }
    count(*counts_[i], part, symbols);
  }
  return 0;
}

int32_t SplitProgram::entry(void* const* buffers) {
  return static_cast<const SplitProgram*>(buffers[0])->run(buffers);
}

const char* SplitProgram::fault() {
  if (const auto part = std::exchange(failed_part, std::nullopt)) return *part ? (*part)() : "";
  std::set<Fault> faults;
  {
    const ForkSafeLock guard(split_programs().mutex);
    faults.insert(split_programs().faults.begin(), split_programs().faults.end());
  }
  for (const auto fault : faults)
    if (const auto* text = fault(); *text) return text;
  return "";
}

} // namespace torchmdla
