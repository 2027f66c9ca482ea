// The cycle model (docs/mdla_emulator.md, "Cycles").
#pragma once

#include "program.h"

namespace mdla {

// Cost of a layer whose clusters run `code`, spread over `cards` cards.
Cost layer_cost(const Code& code, Precision precision, const Board& board, int64_t cards);

} // namespace mdla
