// Specialisations of a group: code for the inputs that it has seen, or the failure to compile them.
#pragma once

#include "group_autograd.h"
#include "runtime/executable.h"
#include "runtime/memory.h"
#include "signature.h"
#include "speed_check.h"
#include "subgraph.h"
#include "symbols.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torchmdla {

// Period within which a renewed use counts as soon.
using KeepTime = std::chrono::duration<double>;

// Notes of a specialisation's use, by which the memory limit chooses what to evict. Times of use
// are allocation epochs (runtime/memory.h). Calls therefore write nothing while memory does not
// grow.
class UseRecord {
public:
  using Clock = std::chrono::steady_clock;

  // Note a use. Return whether memory has grown since the last one.
  bool update() const {
    const auto now = memory_use().allocation_epoch.load(std::memory_order_relaxed);
    if (epoch_.load(std::memory_order_relaxed) == now) return false;
    epoch_.store(now, std::memory_order_relaxed);
    return true;
  }

  uint64_t epoch() const { return epoch_.load(std::memory_order_relaxed); }

  // Note that the specialisation lost memory, which a later use restores.
  void lose(Clock::time_point time) const { lost_at_ = time; }

  // Note that memory was restored. If that is soon after the loss, a period of protection begins.
  void restore(KeepTime soon) const {
    const auto now = Clock::now(), lost_at = lost_at_.exchange(never);
    if (lost_at != never && now - lost_at <= soon) protected_at_ = now;
  }

  // Return whether the specialisation keeps its memory for now.
  bool is_protected(Clock::time_point now, KeepTime soon) const {
    const auto began = protected_at_.load();
    return began != never && now - began < soon;
  }

private:
  static constexpr Clock::time_point never{};
  mutable std::atomic<uint64_t> epoch_{0};
  mutable std::atomic<Clock::time_point> lost_at_{never}, protected_at_{never};
};

// One specialisation. It is immutable once published, except for `gradients`, `speed` and the notes
// of its use.
struct Specialisation {
  enum class Outcome { compiled, split, failed };

  Signature signature;            // of a dynamic one: that of its typical call
  std::optional<Pattern> pattern; // set for a dynamic one
  SizeProgram sizes;              // set for a dynamic one
  Outcome outcome = Outcome::failed;
  std::shared_ptr<const Executable> executable;
  Subgraph::Division division;        // set if the outcome is `split`
  std::vector<size_t> excluded_nodes; // numbers of the nodes that are left out
  std::string failure;
  std::vector<std::atomic<int64_t>*>
      failure_counters; // incremented by calls that fall back for this failure
  std::function<void()> raise;
  mutable OutputGradients gradients; // grows after publication
  SpeedResults speed;                // grows after publication
  UseRecord use;
};

// All specialisations of a group at one time. Readers keep the ones that they run alive, even if
// the group replaces them.
class Specialisations {
public:
  using Entry = std::shared_ptr<const Specialisation>;

  const Specialisation* find(const Signature& signature) const;

  // Return a dynamic specialisation for the signature, and set `values` to its symbols.
  const Specialisation* find_dynamic(const Signature& signature, Symbols& values) const;

  // Return the newest specialisation that runs in groups around nodes left out, or null.
  const Specialisation* newest_split() const;

  // Prefetch the parameters that a call will read. All specialisations have the same parameters.
  void prefetch() const {
    if (!fixed_.empty() && fixed_.back()->executable) fixed_.back()->executable->prefetch();
  }

  // Entries in the order in which they were made.
  const std::vector<Entry>& fixed() const { return fixed_; } // for one signature
  const std::vector<Entry>& dynamic() const { return dynamic_; }
  size_t size() const { return fixed_.size() + dynamic_.size(); }

  Specialisations with(Entry entry) const;
  Specialisations without(const Entry& entry) const;

private:
  std::vector<Entry> fixed_, dynamic_;
};

} // namespace torchmdla
