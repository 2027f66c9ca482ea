// Comparison of compiled code with PyTorch's operators, in the first calls of a specialisation.
//
// The least times of interleaved runs on a call's inputs are compared. Where PyTorch's operators
// are faster, they replace the code, or groups around the slow kernels do. The extra time of a
// process has a limit.
#pragma once

#include "base/forks.h"
#include "runtime/executable.h"
#include "subgraph.h"

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace torchmdla {

// Extra time that a process may spend when it starts. More is added as time passes.
constexpr double usual_speed_budget = 5.0; // seconds

// Set whether groups are compared. nullopt selects the value of TORCHMDLA_CHECK_SPEED, which is on
// by default.
void set_check_speed(std::optional<bool> on, double budget = usual_speed_budget);
bool is_check_speed_on();

// Calls of a specialisation that share a result.
struct SpeedKey {
  int threads;
  int magnitude; // log2 of the product of a dynamic call's symbols, or 0

  bool operator==(const SpeedKey&) const = default;
  static SpeedKey of_call(c10::ArrayRef<int64_t> symbols);
};

// Least seconds of a call; infinite without a measurement.
struct SpeedTimes {
  double compiled = std::numeric_limits<double>::infinity();
  double eager = std::numeric_limits<double>::infinity();
};

// What runs the calls: the code, groups around its slow kernels, or PyTorch's operators.
enum class SpeedChoice { compiled, divided, eager };
constexpr std::array<const char*, 3> speed_choices{"compiled", "divided", "eager"};

struct SpeedFinding {
  SpeedTimes seconds;
  SpeedChoice choice = SpeedChoice::compiled;
  std::vector<size_t> excluded_nodes = {}; // of a division
};

// Comparison that waits for the budget.
struct SpeedProgress {
  SpeedKey key{};
  SpeedTimes seconds;
  int rounds = 0;
};

struct SpeedResult {
  SpeedKey key;
  SpeedFinding finding;
  Subgraph::Division replacement; // null if the code stays
};

// Results of one specialisation. Their number grows; readers take no lock.
class SpeedResults {
public:
  SpeedResults() = default;
  SpeedResults(const SpeedResults&) = delete;
  SpeedResults& operator=(const SpeedResults&) = delete;
  ~SpeedResults();

  // Return the result, which lives as long as this object, or null.
  const SpeedResult* find(const SpeedKey& key) const;

  // Return all results, the oldest first.
  std::vector<const SpeedResult*> all() const;

  // Add a result for a key that has none. The thread must have the turn.
  const SpeedResult* add(SpeedResult result) const;

  // Mutex of the thread that compares. Other threads do not wait for it.
  ForkRobustMutex& turn() const { return turn_; }

  // Return the progress of the comparison for a key. The thread must have the turn.
  SpeedProgress& progress(const SpeedKey& key) const;

  // Seconds that the budget must have left before a comparison goes on.
  std::atomic<double>& needed_budget() const { return needed_budget_; }

private:
  struct Entry {
    const SpeedResult result;
    const Entry* const next;
  };

  mutable std::atomic<const Entry*> newest_{nullptr};
  mutable ForkRobustMutex turn_;
  mutable SpeedProgress progress_; // guarded by turn_
  mutable std::atomic<double> needed_budget_{0};
};

// Return whether runs can be timed now: no profiler watches them, and the budget has so many
// seconds left.
bool can_compare(double seconds);

// Rounds of a comparison, on the inputs of one call. They count as extra time. The functions throw
// the exceptions of the code and of the operators.
class SpeedComparison {
public:
  SpeedComparison(const Executable& executable, Subgraph& subgraph,
                  c10::ArrayRef<c10::IValue> inputs, c10::ArrayRef<int64_t> symbols,
                  SpeedProgress& progress)
      : executable_(executable), subgraph_(subgraph), inputs_(executable.copy_written(inputs)),
        symbols_(symbols), progress_(progress) {}
  ~SpeedComparison();
  SpeedComparison(const SpeedComparison&) = delete;
  SpeedComparison& operator=(const SpeedComparison&) = delete;

  // Run the code, and return whether the call takes long enough to be compared.
  bool is_long();

  // Return the faster choice, or nullopt if the budget does not suffice for the next round.
  std::optional<SpeedFinding> run();

  // Return the seconds of a round. Operators that have not run are assumed to take as long as code.
  double round_seconds() const;

private:
  void run_compiled() const;
  bool is_slower() const;
  double elapsed() const;
  int needed_rounds() const;
  SpeedFinding find_replacement() const;

  const Executable& executable_;
  Subgraph& subgraph_;
  const std::vector<c10::IValue> inputs_; // copies of those that the code writes to
  const c10::ArrayRef<int64_t> symbols_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  SpeedProgress& progress_;
};

// Return the nodes of the kernels that are slower than their operators. Return nothing if the other
// kernels are not faster than theirs by enough. `kernels` and `nodes` are seconds by number.
std::vector<size_t> nodes_of_slow_kernels(const std::vector<std::vector<size_t>>& kernel_nodes,
                                          const std::vector<double>& kernels,
                                          const std::vector<double>& nodes);

} // namespace torchmdla
