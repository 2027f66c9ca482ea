// Costs of a program, as text and numbers.
#pragma once

#include "program.h"

#include <string>

namespace mdla {

// Return the sum of the costs of all layers. `clusters` and `cards` are maxima.
Cost total_cost(const Program& program);
double milliseconds(const Program& program, int64_t cycles);
// Return the multiply-accumulates of `cost` as a fraction of those that all clusters could do in
// its cycles.
double utilisation(const Program& program, const Cost& cost);

// Return a JSON list of layers in the order of execution (docs/mdla_emulator.md, "Report").
std::string layers_json(const Program& program);
// Return text of all instructions with their operands.
std::string listing(const Program& program);

} // namespace mdla
