// The register machine that runs methods.
#pragma once

#include "group.h"
#include "program.h"

#include <span>

namespace torchmdla::native {

// Program and compiled groups that a machine runs.
struct Loaded {
  const Program& program;
  std::span<const LoadedGroup> groups;
};

// Run a method with arguments for all its parameters, which are moved from. `attributes` is the
// state. Throw Error if the program fails. The state is then the one that it left.
Value run_method(const Loaded& loaded, const Method& method, std::span<Value> arguments,
                 std::span<Value> attributes, Arena& arena);

} // namespace torchmdla::native
