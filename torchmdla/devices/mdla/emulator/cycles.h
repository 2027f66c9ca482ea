// The cycle model (docs/mdla_emulator.md, "Cycles").
#pragma once

#include "program.h"

namespace mdla {

// Cost of a layer whose clusters run `code`, spread over `cards` cards.
Cost layer_cost(const Code& code, Precision precision, const Board& board, int64_t cards);

// Of these tensors between host and card.
int64_t transfer_cycles(const std::vector<Placed>& tensors, Precision precision,
                        const Board& board);

} // namespace mdla
