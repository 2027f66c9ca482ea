// Tiling of layers. A tile is a part of a layer's work that fits the on-chip buffers. It consists
// of a few instructions that load, compute and store.
#pragma once

#include "network.h"

namespace mdla {

// Number of elements that one tile may have in each on-chip buffer, and the strategy of splitting.
struct Budget {
  int64_t maps = 0, weights = 0, accumulators = 0;
  bool channels_first = true; // split output channels before rows
  bool weights_stay = true;   // rows vary fastest, so weights are loaded once; else maps are
};

// Addresses of a network's tensors on the card, and their number formats.
struct Placement {
  Precision precision = Precision::kFixed16;
  std::vector<int64_t> address, fraction; // one of each per tensor

  int64_t element(const View& view) const {
    return address[view.tensor] + view.start * element_bytes(precision);
  }
};

using Tile = std::vector<Instruction>;

// Return the tiles of a layer. Throw Fault if even the smallest tile does not fit.
std::vector<Tile> make_tiles(const Layer& layer, const Placement& placement, const Budget& budget);

} // namespace mdla
