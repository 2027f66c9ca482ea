#include "speed_check.h"

#include "runtime/kernel_times.h"
#include "statistics.h"

#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <string_view>
#include <utility>

namespace torchmdla {

namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

// Shorter calls are not compared: their time is that of the call itself.
constexpr double least_seconds = 50e-6;

// Code is slower if its time is longer than eager's by this factor.
constexpr double tolerance = 1.05;

// Numbers of rounds after which code stays that is faster by `clear_gain`, after which other code
// stays, and after which slower code is replaced. Noise of other programs must not replace code. It
// matters less for long calls, whose rounds cost more.
struct Rounds {
  int clear, stay, replace;
};
constexpr double clear_gain = 2;
constexpr Rounds rounds_of_short_calls{3, 3, 6}, rounds_of_long_calls{1, 2, 3};
constexpr double long_seconds = 0.1; // of both runs

// Number of runs that find the times of single kernels and nodes.
constexpr int detailed_runs = 2;

// Part of the time of the process that the budget grows by.
constexpr double budget_share = 0.05;

bool is_on_by_environment() {
  const char* value = std::getenv("TORCHMDLA_CHECK_SPEED");
  return !value || std::string_view(value) != "0";
}

struct SpeedSettings {
  std::atomic<bool> is_on{is_on_by_environment()};
  std::atomic<double> budget{usual_speed_budget};
  std::atomic<double> spent{0};
  const Clock::time_point start = Clock::now();

  double left() const {
    return budget + budget_share * Seconds(Clock::now() - start).count() - spent;
  }
};

SpeedSettings& speed_settings() {
  static auto& instance = *new SpeedSettings;
  return instance;
}

template <class Run> double time_of(Run run) {
  const auto start = Clock::now();
  run();
  return Seconds(Clock::now() - start).count();
}

// Return the least times by element of several runs. Each returns a vector.
template <class Run> std::vector<double> least_of(int runs, Run run) {
  auto least = run();
  for (int i = 1; i < runs; ++i) {
    const auto next = run();
    std::ranges::transform(least, next, least.begin(),
                           [](double a, double b) { return std::min(a, b); });
  }
  return least;
}

// Sets of kernels that compute common nodes, which are compared as one.
class KernelSets {
public:
  KernelSets(const std::vector<std::vector<size_t>>& kernel_nodes, size_t num_nodes)
      : parents_(kernel_nodes.size()) {
    std::iota(parents_.begin(), parents_.end(), size_t{0});
    std::vector<std::optional<size_t>> kernel_of(num_nodes);
    for (size_t kernel = 0; kernel < kernel_nodes.size(); ++kernel)
      for (const size_t node : kernel_nodes[kernel])
        if (kernel_of.at(node))
          parents_[root(kernel)] = root(*kernel_of[node]);
        else
          kernel_of[node] = kernel;
  }

  size_t root(size_t kernel) const {
    while (parents_[kernel] != kernel)
      kernel = parents_[kernel];
    return kernel;
  }

private:
  std::vector<size_t> parents_;
};

} // namespace

void set_check_speed(std::optional<bool> on, double budget) {
  speed_settings().is_on = on.value_or(is_on_by_environment());
  speed_settings().budget = budget;
}

bool is_check_speed_on() {
  return speed_settings().is_on.load(std::memory_order_relaxed);
}

SpeedKey SpeedKey::of_call(c10::ArrayRef<int64_t> symbols) {
  double product = 1;
  for (const auto symbol : symbols)
    product *= static_cast<double>(symbol);
  return {at::get_num_threads(), symbols.empty() ? 0 : std::ilogb(product)};
}

SpeedResults::~SpeedResults() {
  for (const auto* entry = newest_.load(); entry;)
    delete std::exchange(entry, entry->next);
}

const SpeedResult* SpeedResults::find(const SpeedKey& key) const {
  const auto* entry = newest_.load(std::memory_order_acquire);
  while (entry && entry->result.key != key)
    entry = entry->next;
  return entry ? &entry->result : nullptr;
}

std::vector<const SpeedResult*> SpeedResults::all() const {
  std::vector<const SpeedResult*> results;
  for (const auto* entry = newest_.load(std::memory_order_acquire); entry; entry = entry->next)
    results.push_back(&entry->result);
  std::ranges::reverse(results);
  return results;
}

const SpeedResult* SpeedResults::add(SpeedResult result) const {
  const auto* entry = new Entry{std::move(result), newest_.load()};
  newest_.store(entry, std::memory_order_release);
  return &entry->result;
}

SpeedProgress& SpeedResults::progress(const SpeedKey& key) const {
  if (progress_.key != key) progress_ = {key};
  return progress_;
}

bool can_compare(double seconds) {
  return !at::hasCallbacks() && !kernel_observation().is_requested() &&
         speed_settings().left() > seconds;
}

SpeedComparison::~SpeedComparison() {
  const auto seconds = elapsed();
  speed_settings().spent += seconds;
  statistics().speed.seconds += seconds;
}

bool SpeedComparison::is_long() {
  auto& least = progress_.seconds.compiled;
  least = std::min(least, time_of([&] { run_compiled(); }));
  return least >= least_seconds;
}

std::optional<SpeedFinding> SpeedComparison::run() {
  for (; progress_.rounds < needed_rounds(); ++progress_.rounds) {
    if (!can_compare(elapsed() + round_seconds())) return std::nullopt;
    if (!is_long()) return SpeedFinding();
    if (progress_.rounds == 0) ++statistics().speed.checks;
    torch::jit::Stack stack(inputs_.begin(), inputs_.end());
    auto& least = progress_.seconds.eager;
    least = std::min(least, time_of([&] { subgraph_.run(stack); }));
  }
  return is_slower() ? find_replacement() : SpeedFinding{progress_.seconds};
}

double SpeedComparison::round_seconds() const {
  const auto& [compiled, eager] = progress_.seconds;
  return compiled + (progress_.rounds == 0 ? compiled : eager);
}

// Return the number of rounds that a decision needs, by the times so far.
int SpeedComparison::needed_rounds() const {
  const auto& needed =
      round_seconds() < long_seconds ? rounds_of_short_calls : rounds_of_long_calls;
  if (progress_.rounds == 0) return needed.stay;
  if (is_slower()) return needed.replace;
  const auto& [compiled, eager] = progress_.seconds;
  return clear_gain * compiled < eager ? needed.clear : needed.stay;
}

bool SpeedComparison::is_slower() const {
  return progress_.seconds.compiled > tolerance * progress_.seconds.eager;
}

double SpeedComparison::elapsed() const {
  return Seconds(Clock::now() - start_).count();
}

void SpeedComparison::run_compiled() const {
  torch::jit::Stack stack(inputs_.begin(), inputs_.end());
  TORCH_CHECK(executable_.run(stack, inputs_.size(), symbols_),
              "torchmdla: compiled code reported an error while it was timed");
}

SpeedFinding SpeedComparison::find_replacement() const {
  const auto& kernel_nodes = executable_.kernel_nodes();
  if (kernel_nodes.empty()) return {progress_.seconds, SpeedChoice::eager};
  const auto kernels = least_of(detailed_runs, [&] {
    KernelRecording recording;
    run_compiled();
    return recording.seconds();
  });
  const auto nodes = least_of(detailed_runs, [&] {
    torch::jit::Stack stack(inputs_.begin(), inputs_.end());
    return subgraph_.time_nodes(stack);
  });
  auto excluded = nodes_of_slow_kernels(kernel_nodes, kernels, nodes);
  const auto choice = excluded.empty() ? SpeedChoice::eager : SpeedChoice::divided;
  return {progress_.seconds, choice, std::move(excluded)};
}

std::vector<size_t> nodes_of_slow_kernels(const std::vector<std::vector<size_t>>& kernel_nodes,
                                          const std::vector<double>& kernels,
                                          const std::vector<double>& nodes) {
  if (kernels.size() != kernel_nodes.size() || nodes.empty()) return {};
  const KernelSets sets(kernel_nodes, nodes.size());
  std::vector<SpeedTimes> times(kernels.size(), {0, 0}); // by root
  std::vector<std::vector<size_t>> nodes_of(kernels.size());
  for (size_t kernel = 0; kernel < kernels.size(); ++kernel) {
    const auto root = sets.root(kernel);
    times[root].compiled += kernels[kernel];
    nodes_of[root].insert(nodes_of[root].end(), kernel_nodes[kernel].begin(),
                          kernel_nodes[kernel].end());
  }
  double gain = 0;
  std::vector<size_t> excluded;
  for (size_t root = 0; root < kernels.size(); ++root) {
    auto& own = nodes_of[root];
    std::ranges::sort(own);
    own.erase(std::ranges::unique(own).begin(), own.end());
    for (const size_t node : own)
      times[root].eager += nodes[node];
    if (times[root].compiled > tolerance * times[root].eager)
      excluded.insert(excluded.end(), own.begin(), own.end());
    else
      gain += times[root].eager - times[root].compiled;
  }
  std::ranges::sort(excluded);
  const auto eager = std::accumulate(nodes.begin(), nodes.end(), 0.0);
  return gain > (tolerance - 1) * eager ? excluded : std::vector<size_t>();
}

} // namespace torchmdla
