// The cycle model (docs/mdla_emulator.md, "Cycles").
#pragma once

#include "program.h"

#include <algorithm>
#include <map>

namespace mdla {

// Over how many cards computed tensors are spread, evenly, by their addresses. All cards have
// constants, and get the inputs that they need from the host.
class Holdings {
public:
  void computed(int64_t address, int64_t cards) {
    int64_t& known = cards_[address];
    known = std::max(known, cards);
  }
  void on_all_cards(int64_t address) { cards_[address] = 0; }
  // The part of what is loaded from `address` by as many cards that comes from another one.
  double foreign(int64_t address, int64_t cards) const;

private:
  std::map<int64_t, int64_t> cards_; // 0: all
};

// Cost of a layer whose clusters run `code`, spread over `cards` cards.
Cost layer_cost(const Code& code, Precision precision, const Board& board, int64_t cards,
                const Holdings& holdings);

// Of these tensors between host and card.
int64_t host_cycles(const std::vector<Placed>& tensors, Precision precision, const Board& board);

} // namespace mdla
