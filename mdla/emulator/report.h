// What a program costs, as text and numbers.
#pragma once

#include "program.h"

#include <string>

namespace mdla {

// Sums over the layers.
Cost total_cost(const Program& program);
double milliseconds(const Program& program, int64_t cycles);
// Multiply-accumulates done of those that all clusters could have done in the time.
double utilisation(const Program& program, const Cost& cost);

// A JSON list of layers in the order of execution (docs/mdla_emulator.md, "Report").
std::string layers_json(const Program& program);
// Every instruction with its operands.
std::string listing(const Program& program);

} // namespace mdla
