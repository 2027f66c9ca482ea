#include "statistics.h"

#include "base/forks.h"

namespace torchmdla {

const char* describe(Fallback reason) {
  static constexpr std::array<const char*, static_cast<size_t>(Fallback::count)> texts{
      "torchmdla is switched off",
      "a dispatch mode (vmap, TorchDispatchMode, …) is active",
      "an input is not a plain strided CPU tensor",
      "grad mode is on, an input requires grad, and backward is expected",
      "an input requires grad, and hooks on saved tensors or tensors of inference mode keep it "
      "from "
      "being saved",
      "an input has a forward-mode gradient",
      "this specialisation is being compiled",
      "the group has too many specialisations",
      "the compiled code reported an error",
      "no package has code for the call, and this process does not have a compiler",
      "PyTorch's operators took less time than the compiled code"};
  return texts[static_cast<size_t>(reason)];
}

ReasonCounts::Counter& ReasonCounts::counter(const std::string& reason) {
  const ForkSafeLock guard(mutex_);
  return counts_[reason];
}

std::map<std::string, int64_t> ReasonCounts::counts() const {
  const ForkSafeLock guard(mutex_);
  std::map<std::string, int64_t> result;
  for (const auto& [reason, counter] : counts_)
    if (const int64_t number = counter) result.emplace(reason, number);
  return result;
}

int64_t ReasonCounts::total() const {
  const ForkSafeLock guard(mutex_);
  int64_t sum = 0;
  for (const auto& [reason, counter] : counts_)
    sum += counter;
  return sum;
}

void ReasonCounts::reset() {
  const ForkSafeLock guard(mutex_);
  for (auto& [reason, counter] : counts_)
    counter = 0;
}

std::map<std::string, int64_t> FallbackCounts::counts() const {
  auto result = failures_.counts();
  for (size_t i = 0; i < known_.size(); ++i)
    if (const auto number = known_[i].load()) result[describe(static_cast<Fallback>(i))] = number;
  return result;
}

int64_t FallbackCounts::total() const {
  int64_t sum = failures_.total();
  for (const auto& number : known_)
    sum += number;
  return sum;
}

void FallbackCounts::reset() {
  failures_.reset();
  for (auto& number : known_)
    number = 0;
}

void PackageCounts::reset() {
  loaded.reset();
  refused.reset();
  specialisations = 0;
}

void MemoryCounts::reset() {
  unpacked = evicted = over_limit = 0;
}

void SpeedCounts::reset() {
  checks = replaced = 0;
  seconds = 0;
}

void Statistics::reset() {
  fallbacks.reset();
  packages.reset();
  memory.reset();
  speed.reset();
  not_dynamic.reset();
  not_trained.reset();
  groups = specialisations = dynamic = training_calls = 0;
}

Statistics& statistics() {
  static Statistics instance;
  return instance;
}

} // namespace torchmdla
