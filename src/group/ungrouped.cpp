#include "ungrouped.h"

#include "base/forks.h"
#include "fusion/device_table.h"
#include "statistics.h"

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

// Append a line for each location of `range`: in the program, and in the file that it was saved to.
// The surrounding text is left out, because it may be long and is printed for each operator. The
// text of traced code is a stack, and `range` is all of it.
void append_places(std::string& text, const torch::jit::SourceRange& range) {
  if (const auto original = range.findSourceRangeThatGenerated()) append_places(text, *original);
  const auto is_stack = range.source() && range.size() == range.source()->size();
  if (const auto place = range.file_line_col(); place && !is_stack) {
    const auto& [file, line, column] = *place;
    text.append("File \"")
        .append(file)
        .append("\", line ")
        .append(std::to_string(line))
        .append("\n");
  } else {
    text.append(range.str()).append("\n");
  }
}

} // namespace

std::string source_ranges(const torch::jit::Node* node) {
  try {
    std::string text;
    append_places(text, node->sourceRange());
    if (const auto calls = node->callstack()) {
      const auto outwards = (*calls)->vec();
      for (auto call = outwards.rbegin(); call != outwards.rend(); ++call)
        append_places(text, std::get<torch::jit::SourceRange>(*call));
    }
    return text;
  } catch (const std::exception&) {
    // The locations are read from the program's file only here. If that part of the file is
    // damaged, the program still runs.
    return "";
  }
}

UngroupedOperator describe(const Ungrouped& ungrouped, const std::string& device) {
  return {name_of(ungrouped.node), describe(ungrouped.refusal, device),
          source_ranges(ungrouped.node)};
}

std::function<void(const Ungrouped&)> count_ungrouped(const DeviceTable& table) {
  return [device = table.device](const Ungrouped& ungrouped) {
    if (ungrouped.refusal == Refusal::left_out) return;
    auto description = describe(ungrouped, device);
    const ForkSafeLock guard(counts().mutex);
    ++counts().counts[std::move(description)];
  };
}

void count_failed_pass(const std::string& error) {
  statistics().fallbacks.count(
      "the pass that forms groups failed on a graph, which is as it was: " + error);
}

std::map<UngroupedOperator, int64_t> ungrouped_operators() {
  const ForkSafeLock guard(counts().mutex);
  return counts().counts;
}

} // namespace torchmdla
