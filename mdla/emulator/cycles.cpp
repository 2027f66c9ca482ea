#include "cycles.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>

namespace mdla {
namespace {

// Visitor of one cluster's instructions, which sums up their costs.
class Counter {
public:
  Counter(Precision precision, const Board& board, int64_t cards, const Holdings& holdings)
      : precision_(precision), board_(board), cards_(cards), holdings_(holdings) {}

  int64_t compute = 0, macs = 0, loaded = 0, stored = 0, tiles = 0;
  int64_t first_loaded = 0, last_stored = 0; // bytes that do not overlap with computation
  double transferred = 0;                    // bytes from other cards

  void operator()(const Load& load) {
    if (load.unit == Unit::kMaps) maps_ = load;
    int64_t count = 1;
    for (int axis = 0; axis < kRank; ++axis)
      if (load.strides[axis] != 0 || load.extent[axis] == 0) count *= load.extent[axis];
    int64_t bytes = count * element_bytes(precision_);
    add_load(bytes);
    transferred += static_cast<double>(bytes) * holdings_.remote_fraction(load.address, cards_);
  }
  void operator()(const Accumulate& accumulate) {
    if (accumulate.address >= 0) add_load(accumulate.channels * accumulator_bytes(precision_));
  }
  void operator()(const Convolve& convolve) {
    std::map<int64_t, int64_t> alike = outputs_by_products(convolve.window);
    int64_t cycles = 0;
    for (const auto& [products, pixels] : alike) {
      int64_t depth = convolve.cin * products;
      int64_t outputs = convolve.groups * convolve.cout * pixels;
      cycles += convolve_cycles(depth, outputs);
      macs += depth * outputs;
    }
    add(cycles);
  }
  void operator()(const Pool& pool) {
    add_lanes(pool.planes * elements(pool.window.out) * elements(pool.window.kernel));
  }
  void operator()(const Divide& divide) {
    add_lanes(divide.planes * static_cast<int64_t>(divide.depth.size() * divide.height.size() *
                                                   divide.width.size()));
  }
  void operator()(const Move& move) { add_lanes(move.count); }
  void operator()(const Combine& combine) { add_lanes(combine.count); }
  void operator()(const Activate& activate) { add_lanes(activate.count); }
  // It has three passes: maximum, exponential with sum, and division.
  void operator()(const Softmax& softmax) { add_lanes(3 * softmax.rows * softmax.columns); }
  void operator()(const Interpolate& interpolate) {
    add_lanes(2 * interpolate.outer * static_cast<int64_t>(interpolate.first.size()) *
              interpolate.inner);
  }
  void operator()(const Store& store) {
    last_stored = elements(store.dims) * element_bytes(precision_);
    stored += last_stored;
    ++tiles;
  }

private:
  int64_t convolve_cycles(int64_t depth, int64_t outputs) const {
    int64_t vectors = board_.macs_per_cluster / board_.mac_vector;
    int64_t cooperative = ceil_div(depth, board_.mac_vector) * ceil_div(outputs, vectors);
    int64_t independent = depth * ceil_div(outputs, board_.macs_per_cluster);
    return std::min(cooperative, independent);
  }

  // Return a map from a number of products to the number of outputs of a channel that have so many.
  // An output has one product for each element of the kernel, except for elements that meet a zero
  // that the load of the maps inserted between input elements.
  std::map<int64_t, int64_t> outputs_by_products(const Window& window) const {
    std::map<int64_t, int64_t> alike{{1, 1}};
    for (int axis = 0; axis < 3; ++axis) {
      std::map<int64_t, int64_t> along;
      for (int64_t at = 0; at < window.out[axis]; ++at)
        ++along[products_along(window, axis, at)];
      std::map<int64_t, int64_t> both;
      for (const auto& [products, outputs] : alike)
        for (const auto& [more, times] : along)
          both[products * more] += outputs * times;
      alike = std::move(both);
    }
    return alike;
  }

  int64_t products_along(const Window& window, int axis, int64_t at) const {
    int64_t spread = std::max<int64_t>(maps_.spread[3 + axis], 1);
    if (spread == 1) return window.kernel[axis];
    int64_t count = 0;
    for (int64_t k = 0; k < window.kernel[axis]; ++k) {
      int64_t place = at * window.stride[axis] + k * window.dilation[axis];
      count += (place - maps_.offset[3 + axis]) % spread == 0;
    }
    return count;
  }

  void add(int64_t cycles) { compute += board_.instruction_cycles + cycles; }
  void add_lanes(int64_t count) { add(ceil_div(count, board_.vector_lanes)); }
  void add_load(int64_t bytes) {
    loaded += bytes;
    if (compute == 0) first_loaded += bytes;
  }

  Precision precision_;
  const Board& board_;
  const int64_t cards_;
  const Holdings& holdings_;
  Load maps_; // the last load of maps
};

// Return the cycles for `bytes` at `rate` bytes per cycle.
int64_t cycles_for(int64_t bytes, double rate) {
  double cycles = std::ceil(static_cast<double>(bytes) / rate);
  require(cycles < 0x1p53, "the board is too slow for its cycles to be counted");
  return static_cast<int64_t>(cycles);
}

} // namespace

double Holdings::remote_fraction(int64_t address, int64_t cards) const {
  auto next = cards_.upper_bound(address);
  int64_t holders = next == cards_.begin() ? 0 : std::prev(next)->second;
  if (holders == 0) return 0;
  // Each loading card that is also a holder already has its own part of the data.
  return 1 - static_cast<double>(std::min(cards, holders)) / static_cast<double>(cards * holders);
}

Cost layer_cost(const Code& code, Precision precision, const Board& board, int64_t cards,
                const Holdings& holdings) {
  Cost cost;
  int64_t exposed = 0;
  double transferred = 0;
  for (const std::vector<Instruction>& instructions : code) {
    if (instructions.empty()) continue;
    Counter counter(precision, board, cards, holdings);
    for (const Instruction& instruction : instructions)
      std::visit(counter, instruction);
    cost.compute_cycles = std::max(cost.compute_cycles, counter.compute);
    exposed = std::max(exposed, counter.first_loaded + counter.last_stored);
    cost.macs += counter.macs, cost.tiles += counter.tiles;
    cost.bytes_loaded += counter.loaded, cost.bytes_stored += counter.stored;
    transferred += counter.transferred;
    ++cost.clusters;
  }
  cost.cards = cards;
  double rate = board.bytes_per_cycle() * static_cast<double>(cards);
  cost.memory_cycles = cycles_for(std::max(cost.bytes_loaded, cost.bytes_stored), rate);
  cost.bytes_transferred = static_cast<int64_t>(std::ceil(transferred));
  cost.transfer_cycles =
      cycles_for(cost.bytes_transferred, board.host_bytes_per_cycle() * static_cast<double>(cards));
  cost.cycles = board.latency_cycles + cycles_for(exposed, board.bytes_per_cycle()) +
                std::max({cost.compute_cycles, cost.memory_cycles, cost.transfer_cycles});
  return cost;
}

int64_t host_cycles(const std::vector<Placed>& tensors, Precision precision, const Board& board) {
  int64_t bytes = 0;
  for (const Placed& tensor : tensors)
    bytes += elements(tensor.shape) * element_bytes(precision);
  return cycles_for(bytes, board.host_bytes_per_cycle());
}

} // namespace mdla
