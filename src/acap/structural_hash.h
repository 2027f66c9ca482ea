// What pending graphs have in common that are the same program: in each step of a loop, say.
#pragma once

#include "graph.h"

#include <string>
#include <vector>

namespace torchmdla::acap {

struct Structure {
  // Equal for graphs with the same calls, inputs of the same types and constants of the same values
  // but for floats. Empty for a graph with constants that have no key.
  std::string key;
  std::vector<double> floats;      // in the calls' order
  std::vector<c10::IValue> inputs; // tensors at hand, each once, in the order of their first uses
};

// `nodes`, operands before users. graph_mutex() must be held.
Structure structure_of(const std::vector<Node*>& nodes, const std::vector<ValuePtr>& outputs);

} // namespace torchmdla::acap
