// Counters of what groups did in this process, shown by `torchmdla.stats()`.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace torchmdla {

// Why a group ran its subgraph in PyTorch's interpreter.
enum class Fallback {
  switched_off,
  dispatch_mode,
  input_kind,
  requires_grad,
  saved_tensors,
  tangent,
  being_compiled,
  too_many_specialisations,
  status,
  count
};

const char* describe(Fallback reason);

class Statistics {
public:
  std::atomic<int64_t> groups{0};
  std::atomic<int64_t> specialisations{0};
  std::atomic<int64_t> dynamic{0}; // specialisations for any sizes

  void count(Fallback reason) {
    fallbacks_[static_cast<size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
  }

  // A group whose compilation failed; the reason is the compiler's.
  void count(const std::string& reason);

  // A group whose sizes vary and that is compiled for each of them.
  void count_not_dynamic(const std::string& reason);

  std::map<std::string, int64_t> fallbacks() const;
  std::map<std::string, int64_t> not_dynamic() const;
  void reset();

private:
  std::array<std::atomic<int64_t>, static_cast<size_t>(Fallback::count)> fallbacks_{};
  mutable std::mutex mutex_;
  std::map<std::string, int64_t> failures_;    // guarded by mutex_
  std::map<std::string, int64_t> not_dynamic_; // guarded by mutex_
};

Statistics& statistics();

} // namespace torchmdla
