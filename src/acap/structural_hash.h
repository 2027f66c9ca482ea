// Keys of pending graphs, equal for repeated code such as the steps of a loop.
#pragma once

#include "graph.h"

#include <string>
#include <vector>

namespace torchmdla::acap {

struct Structure {
  // Equal for graphs with the same calls, input types and constants; values of floats do not count.
  // Empty for a graph with a constant that does not have a key.
  std::string key;
  std::vector<double> floats;      // in the calls' order
  std::vector<c10::IValue> inputs; // computed tensors, each once, in order of first use
};

// Return the structure of `nodes`, operands before users. graph_mutex() must be held.
Structure structure_of(const std::vector<Node*>& nodes, const std::vector<ValuePtr>& outputs);

} // namespace torchmdla::acap
