#include "ungrouped.h"

#include "fusion/device_table.h"
#include "statistics.h"
#include "support/forks.h"

#include <mutex>

namespace torchmdla {

namespace {

struct Counts {
  std::mutex mutex;
  std::map<UngroupedOperator, int64_t> counts; // guarded by mutex
};

Counts& counts() {
  static auto& instance = *new Counts;
  return instance;
}

std::string name_of(const torch::jit::Node* node) {
  const auto* schema = node->maybeSchema();
  return schema ? c10::toString(schema->operator_name()) : node->kind().toQualString();
}

} // namespace

std::string source_ranges(const torch::jit::Node* node) {
  try {
    auto text = node->sourceRange().str();
    if (const auto calls = node->callstack()) {
      const auto outwards = (*calls)->vec();
      for (auto call = outwards.rbegin(); call != outwards.rend(); ++call)
        text.append("\n").append(std::get<torch::jit::SourceRange>(*call).str());
    }
    return text;
  } catch (const std::exception&) {
    // Read from the program's file only here. Where that part of it is damaged, the program runs
    // all the same.
    return "";
  }
}

UngroupedOperator describe(const Ungrouped& one, const std::string& device) {
  return {name_of(one.node), describe(one.refusal, device), source_ranges(one.node)};
}

std::function<void(const Ungrouped&)> count_ungrouped(const DeviceTable& table) {
  return [device = table.device](const Ungrouped& one) {
    if (one.refusal == Refusal::left_out) return;
    auto described = describe(one, device);
    const Guard guard(counts().mutex);
    ++counts().counts[std::move(described)];
  };
}

void count_failed_pass(const std::string& error) {
  statistics().fallbacks.count(
      "the pass that forms groups failed on a graph, which is as it was: " + error);
}

std::map<UngroupedOperator, int64_t> ungrouped_operators() {
  const Guard guard(counts().mutex);
  return counts().counts;
}

} // namespace torchmdla
