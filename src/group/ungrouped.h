// Operators outside of groups, and the reasons, from all graphs of this process.
#pragma once

#include "fusion/fusion_pass.h"

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace torchmdla {

struct DeviceTable;

// Return the source locations of a node, one per line or as a traced stack. Those of the calls that
// it is inlined from follow, innermost first. Return an empty string if that part of the program's
// file is damaged.
std::string source_ranges(const torch::jit::Node* node);

struct UngroupedOperator {
  std::string op;
  std::string reason;
  std::string source_ranges;

  auto operator<=>(const UngroupedOperator&) const = default;
};

// Return the description of an operator that is in no group of `device`.
UngroupedOperator describe(const Ungrouped& ungrouped, const std::string& device);

// Return a function that counts the operators that a pass with `table` leaves outside of groups.
// Operators that it was asked to leave out do not count.
std::function<void(const Ungrouped&)> count_ungrouped(const DeviceTable& table);

// Count a graph on which a pass failed among the fallbacks of this process.
void count_failed_pass(const std::string& error);

// Return the operators outside of groups, and the number of graphs that contain each.
std::map<UngroupedOperator, int64_t> ungrouped_operators();

} // namespace torchmdla
