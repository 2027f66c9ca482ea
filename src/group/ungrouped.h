// The operators that graphs have outside of groups, and why: of all graphs of this process.
#pragma once

#include "fusion/fusion_pass.h"

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace torchmdla {

struct DeviceTable;

// The places of a node, a line for each or a traced stack, and then those of the calls that it is
// inlined from, outwards. Empty where the part of the program's file that has them is damaged.
std::string source_ranges(const torch::jit::Node* node);

struct UngroupedOperator {
  std::string op;
  std::string reason;
  std::string source_ranges;

  auto operator<=>(const UngroupedOperator&) const = default;
};

// `device` takes the operators.
UngroupedOperator describe(const Ungrouped& one, const std::string& device);

// Counts what a pass by `table` leaves outside, but for what it was told to leave out.
std::function<void(const Ungrouped&)> count_ungrouped(const DeviceTable& table);

// Counts a graph that a pass failed on, among the fallbacks of this process.
void count_failed_pass(const std::string& error);

// In how many graphs each stands.
std::map<UngroupedOperator, int64_t> ungrouped_operators();

} // namespace torchmdla
