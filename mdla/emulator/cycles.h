// Cycle model (docs/mdla_emulator.md, "Cycles").
#pragma once

#include "program.h"

#include <algorithm>
#include <map>

namespace mdla {

// Number of cards over which each computed tensor is distributed evenly, by its address. Every card
// has the constants, and gets the inputs that it needs from the host.
class Holdings {
public:
  void computed(int64_t address, int64_t cards) {
    int64_t& known = cards_[address];
    known = std::max(known, cards);
  }
  void on_all_cards(int64_t address) { cards_[address] = 0; }
  // Return the fraction of the data at `address` that `cards` cards load from other cards.
  double remote_fraction(int64_t address, int64_t cards) const;

private:
  std::map<int64_t, int64_t> cards_; // number of cards by address; 0 if all cards have the data
};

// Return the cost of a layer whose clusters run `code`, distributed over `cards` cards.
Cost layer_cost(const Code& code, Precision precision, const Board& board, int64_t cards,
                const Holdings& holdings);

// Return the cycles of the transfer of these tensors between host and card.
int64_t host_cycles(const std::vector<Placed>& tensors, Precision precision, const Board& board);

} // namespace mdla
