// Specialisations that came with a program's file, made elsewhere: groups find them by structure.
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

// What a group would have made for these inputs.
class PackagedSpecialisation {
public:
  PackagedSpecialisation() = default;
  PackagedSpecialisation(const PackagedSpecialisation&) = delete;
  PackagedSpecialisation& operator=(const PackagedSpecialisation&) = delete;
  virtual ~PackagedSpecialisation() = default;

  Structure structure{};
  Signature signature;            // of a dynamic one, of the call that it was made for
  std::optional<Pattern> pattern; // of a dynamic one
  SizeProgram sizes;              // likewise
  // Of one that runs in groups around these of the subgraph's nodes.
  std::optional<std::vector<size_t>> left_out;
  // Weights of int8 that must need no more bits: indices of inputs.
  std::vector<std::pair<size_t, int64_t>> bits;

  bool covers(const Signature& other) const;

  // Maps the code, unless nodes are left out, and binds it to the subgraph of a group with so many
  // inputs. Throws where that cannot be.
  virtual std::shared_ptr<const Executable> load(const Subgraph& subgraph,
                                                 size_t num_inputs) const = 0;
};

using Packaged = std::vector<std::shared_ptr<const PackagedSpecialisation>>;

// Of what a program lives in: its compilation unit, where it is of TorchScript.
using ProgramLife = std::weak_ptr<const void>;

struct Package {
  std::string identity;     // equal where what is in it is
  Packaged specialisations; // in order
};

// Makes a package known to all groups, once, for as long as one of its programs lives. A program
// that is not known (nullopt) is taken to live until another package comes from the same `path`,
// an absolute one.
void add_package(Package package, const std::string& path, std::optional<ProgramLife> program);

// Forgets those whose programs are no more; so does whoever adds one.
void drop_dead_packages();

// Whether any were added: what a call asks before it looks for one.
bool are_any_packaged();

// In the order in which they were added.
Packaged find_packaged(const Structure& structure);

} // namespace torchmdla
