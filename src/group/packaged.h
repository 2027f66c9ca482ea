// Specialisations from packages, which were compiled elsewhere. Groups find them by structure.
#pragma once

#include "runtime/executable.h"
#include "structure.h"
#include "subgraph.h"
#include "symbols.h"

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torchmdla {

// A specialisation as a group would have compiled it for these inputs.
class PackagedSpecialisation {
public:
  PackagedSpecialisation() = default;
  PackagedSpecialisation(const PackagedSpecialisation&) = delete;
  PackagedSpecialisation& operator=(const PackagedSpecialisation&) = delete;
  virtual ~PackagedSpecialisation() = default;

  Structure structure{};
  Signature signature;            // of a dynamic one: that of its typical call
  std::optional<Pattern> pattern; // set for a dynamic one
  SizeProgram sizes;              // set for a dynamic one
  // Nodes of the subgraph that the specialisation leaves out, if it runs in groups around them.
  std::optional<std::vector<size_t>> excluded_nodes;
  // Input indices of int8 weights, each with the number of bits that the weight's values must need.
  std::vector<std::pair<size_t, int64_t>> bits;

  bool covers(const Signature& other) const;

  // Map the code, unless nodes are left out, and bind it to the subgraph of a group with
  // `num_inputs` inputs. Throw if that is not possible.
  virtual std::shared_ptr<const Executable> load(const Subgraph& subgraph,
                                                 size_t num_inputs) const = 0;
};

using PackagedList = std::vector<std::shared_ptr<const PackagedSpecialisation>>;

// Reference to an object that lives as long as its program: the compilation unit in TorchScript.
using ProgramLife = std::weak_ptr<const void>;

struct Package {
  std::string identity;         // equal for packages of equal content
  PackagedList specialisations; // in order
};

// Register a package for all groups, once, for as long as one of its programs lives. An unknown
// program (nullopt) is assumed to live until another package comes from the same absolute `path`.
void add_package(Package package, const std::string& path, std::optional<ProgramLife> program);

// Drop the packages whose programs do not live any more. `add_package` does so too.
void drop_dead_packages();

// Return whether any package is registered. Calls check this before they look for one.
bool are_any_packaged();

// Return the specialisations of this structure, in the order in which they were added.
PackagedList find_packaged(const Structure& structure);

} // namespace torchmdla
