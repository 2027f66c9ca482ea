// What there is to say of the groups that live in this process, for people (`torchmdla.explain`).
#pragma once

#include "runtime/executable.h"
#include "subgraph.h"
#include "symbols.h"

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace torchmdla {

class CompilationGroup;

struct SpecialisationReport {
  std::shared_ptr<const Executable> executable; // null where it could not be compiled
  std::string failure;
  Signature signature;
  std::optional<Pattern> pattern;                // of a dynamic one
  std::optional<std::vector<size_t>> left_out{}; // of one that is divided around these nodes
};

struct GroupReport {
  int64_t number; // counted up in this process
  std::string name;
  std::string device;
  std::shared_ptr<const Subgraph> subgraph;
  std::vector<int64_t> parameters; // indices of inputs that are weights
  int64_t compiled_calls;
  int64_t recorded_calls; // by eager operators, to learn what the compiler has to know
  int64_t training_calls; // as PyTorch runs a program that trains: backward is expected
  std::map<std::string, int64_t> fallbacks;
  std::map<std::string, int64_t> not_dynamic;
  std::vector<SpecialisationReport> specialisations; // in order, static ones first
  std::vector<c10::IValue> inputs;                   // of the latest call, where they are kept
};

// What of a group tells whether it did anything since: for few instructions, of thousands of
// groups.
struct GroupCounts {
  int64_t number;
  int64_t calls; // compiled, recorded, and in PyTorch's interpreter
  int64_t training_calls;
  int64_t specialisations;
};

// Of all groups that there were, by how they ran.
struct CallTotals {
  int64_t compiled = 0;
  int64_t recorded = 0;
};

// The number of a new group.
int64_t next_group_number();

// Groups enter when they are made and leave when they are destroyed.
void enter_group(CompilationGroup* group);
void leave_group(CompilationGroup* group);

// In no order. Each is kept by whoever asks.
std::vector<std::shared_ptr<CompilationGroup>> living_groups();

// Of all groups, or of those with these numbers, by number.
std::vector<GroupReport> group_reports(const std::optional<std::set<int64_t>>& numbers = {});
std::vector<GroupCounts> group_counts();

// These never decrease.
CallTotals call_totals();

// Has those with this number or a later one take over what packages have for them.
void prepare_groups(int64_t first);

// Whether groups keep the inputs of their latest call, to compare it with eager operators. Off,
// what was kept is let go of.
void keep_inputs(bool on);

} // namespace torchmdla
