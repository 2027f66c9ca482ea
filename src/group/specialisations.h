// What a group has for the inputs that it has seen: code, or why there is none.
#pragma once

#include "group_autograd.h"
#include "runtime/executable.h"
#include "runtime/memory.h"
#include "signature.h"
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

// When something was last used, as far as growths of memory tell it (runtime/memory.h): so calls
// write nothing while nothing grows.
class LastUse {
public:
  // Now. Whether memory has grown since the last one.
  bool note() const {
    const auto now = memory_use().growths.load(std::memory_order_relaxed);
    if (at_.load(std::memory_order_relaxed) == now) return false;
    at_.store(now, std::memory_order_relaxed);
    return true;
  }

  uint64_t at() const { return at_.load(std::memory_order_relaxed); }

private:
  mutable std::atomic<uint64_t> at_{0};
};

// How soon is soon, of what is wanted again after it was taken.
using KeepTime = std::chrono::duration<double>;

// Whether something may be taken: not soon after it was wanted again soon after it was taken.
class Grace {
public:
  using Clock = std::chrono::steady_clock;

  // It is there again, and was `taken` then.
  void back(Clock::time_point taken, KeepTime soon) const {
    const auto now = Clock::now();
    if (now - taken <= soon) began_ = now;
  }

  bool lasts(Clock::time_point now, KeepTime soon) const {
    const auto began = began_.load();
    return began != Clock::time_point() && now - began < soon;
  }

private:
  mutable std::atomic<Clock::time_point> began_{Clock::time_point()};
};

// Immutable once published, but for what grows, and for what is noted of its use.
struct Specialisation {
  enum class Outcome { compiled, split, failed };

  Signature signature;            // of a dynamic one, of the call that it was made for
  std::optional<Pattern> pattern; // of a dynamic one
  SizeProgram sizes;              // likewise
  Outcome outcome = Outcome::failed;
  std::shared_ptr<const Executable> executable;
  Subgraph::Division division;  // where `split`
  std::vector<size_t> left_out; // numbers of the nodes that it leaves out
  std::string failure;
  std::vector<std::atomic<int64_t>*>
      failure_counters; // which a call that falls back for it counts in
  std::function<void()> raise;
  mutable OutputGradients gradients; // grows
  LastUse last_use;
  Grace grace;
  // When it lost its packs (memory_limit.h); never where it has not or got them again.
  mutable std::atomic<Grace::Clock::time_point> unpacked{Grace::Clock::time_point()};
};

// All of a group's at one time. Readers keep what they run by it, whatever becomes of the group's
// next ones.
class Specialisations {
public:
  using Entry = std::shared_ptr<const Specialisation>;

  const Specialisation* find(const Signature& signature) const;

  // `values` are then those of its symbols.
  const Specialisation* find_dynamic(const Signature& signature, Symbols& values) const;

  // Null where none runs in groups around nodes that are left out.
  const Specialisation* newest_split() const;

  // Fetches what a call will read of parameters, which are those of all.
  void prefetch() const {
    if (!fixed_.empty() && fixed_.back()->executable) fixed_.back()->executable->prefetch();
  }

  // In the order in which they were made.
  const std::vector<Entry>& fixed() const { return fixed_; } // for one signature
  const std::vector<Entry>& dynamic() const { return dynamic_; }
  size_t size() const { return fixed_.size() + dynamic_.size(); }

  Specialisations with(Entry entry) const;
  Specialisations without(const Entry& entry) const;

private:
  std::vector<Entry> fixed_, dynamic_;
};

} // namespace torchmdla
