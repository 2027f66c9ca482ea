// Reports on the groups that live in this process, for humans (`torchmdla.explain`).
#pragma once

#include "runtime/executable.h"
#include "speed_check.h"
#include "subgraph.h"
#include "symbols.h"

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace torchmdla {

class CompilationGroup;

struct SpecialisationReport {
  std::shared_ptr<const Executable> executable; // null if it could not be compiled
  std::string failure;
  Signature signature;
  std::optional<Pattern> pattern;                         // set for a dynamic specialisation
  std::optional<std::vector<size_t>> excluded_nodes{};    // set if it is divided around these nodes
  std::vector<std::pair<SpeedKey, SpeedFinding>> speed{}; // comparisons with PyTorch's operators
};

struct GroupReport {
  int64_t number; // ascending in this process
  std::string name;
  std::string device;
  std::shared_ptr<const Subgraph> subgraph;
  std::vector<int64_t> parameters; // indices of inputs that are weights
  int64_t compiled_calls;
  int64_t recorded_calls; // run by eager operators and recorded for the compiler
  int64_t training_calls; // run by PyTorch, because backward is expected
  std::map<std::string, int64_t> fallbacks;
  std::map<std::string, int64_t> not_dynamic;
  std::vector<SpecialisationReport> specialisations; // in order, static ones first
  std::vector<c10::IValue> inputs;                   // inputs of the latest call, if they are kept
};

// Counts that show whether a group has run since an earlier report. They take few instructions,
// because there may be thousands of groups.
struct GroupCounts {
  int64_t number;
  int64_t calls; // compiled, recorded, and in PyTorch's interpreter
  int64_t training_calls;
  int64_t specialisations;
};

// Calls of all groups that have existed, by how they ran.
struct CallTotals {
  int64_t compiled = 0;
  int64_t recorded = 0;
};

// Return the number of a new group.
int64_t next_group_number();

// Register or unregister a group, which its constructor and its destructor do.
void register_group(CompilationGroup* group);
void unregister_group(CompilationGroup* group);

// Return all living groups, in no particular order. The caller keeps them alive.
std::vector<std::shared_ptr<CompilationGroup>> living_groups();

// Return reports on all groups, or on those with these numbers, sorted by number.
std::vector<GroupReport> group_reports(const std::optional<std::set<int64_t>>& numbers = {});
std::vector<GroupCounts> group_counts();

// Return the totals, which never decrease.
CallTotals call_totals();

// Prepare the groups with this number or a later one: load their specialisations from packages.
void prepare_groups(int64_t first);

// Set whether groups keep the inputs of their latest call, to compare it with eager operators. Kept
// inputs are released when it is off.
void keep_inputs(bool on);

} // namespace torchmdla
