// Layers to tiles: pieces of work that fit the on-chip buffers, each a few instructions that load,
// compute and store.
#pragma once

#include "network.h"

namespace mdla {

// Elements that one tile may hold in each on-chip buffer, and what to split where it does not fit.
struct Budget {
  int64_t maps = 0, weights = 0, accumulators = 0;
  bool channels_first = true; // split output channels before rows
  bool weights_stay = true;   // rows vary fastest: weights are loaded once; else maps are
};

// Where a network's tensors are on the card, and their number formats.
struct Placement {
  Precision precision = Precision::kFixed16;
  std::vector<int64_t> address, fraction; // of each tensor

  int64_t element(const View& view) const {
    return address[view.tensor] + view.start * element_bytes(precision);
  }
};

using Tile = std::vector<Instruction>;

// A Fault where not even the smallest tile fits.
std::vector<Tile> make_tiles(const Layer& layer, const Placement& placement, const Budget& budget);

} // namespace mdla
