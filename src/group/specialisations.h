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

// Immutable once published, but for what grows.
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
  std::function<void()> raise;
  mutable OutputGradients gradients; // grows
  LastUse last_use;
  // Not to be taken out before: it was, and was wanted again soon (memory_limit.h).
  std::chrono::steady_clock::time_point kept_until{};
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
