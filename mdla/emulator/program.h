// Device program: instructions, layers, and the addresses of a network's tensors on the card.
//
// Every structure lists its fields once, in `fields`. The binary, the listing and the checks of a
// damaged file all use that list.
#pragma once

#include "board.h"
#include "number.h"
#include "shape.h"

#include <string>
#include <variant>
#include <vector>

namespace mdla {

// On-chip buffers that a load fills.
enum class Unit : int64_t { kMaps, kWeights };

// Load from memory to a buffer. The tile has the sizes `dims`. Its element at offset + i·spread
// along each dimension, for i below extent, is memory[address + Σ i·stride · element size]. All
// other elements are `fill`.
struct Load {
  Unit unit = Unit::kMaps;
  int64_t address = 0;
  Index dims{}, strides{}, offset{}, extent{}, spread{};
  double fill = 0; // in the format of stored numbers
  bool operator==(const Load&) const = default;
  template <class F> void fields(F&& f) {
    f("unit", unit), f("address", address), f("dims", dims), f("strides", strides);
    f("offset", offset), f("extent", extent), f("spread", spread), f("fill", fill);
  }
};

// Start of accumulators [channels, pixels], from a bias of each channel at `address`, or from 0 if
// it is -1.
struct Accumulate {
  int64_t channels = 0, pixels = 0, address = -1;
  template <class F> void fields(F&& f) {
    f("channels", channels), f("pixels", pixels), f("address", address);
  }
};

struct Window {
  Spatial in{}, out{}, kernel{}, stride{}, dilation{};
  template <class F> void fields(F&& f) {
    f("in", in), f("out", out), f("kernel", kernel), f("stride", stride), f("dilation", dilation);
  }
};

// accumulators [groups, cout, out] += maps [groups, cin, in] * weights [groups, cout, cin, kernel]
struct Convolve {
  int64_t groups = 0, cin = 0, cout = 0;
  Window window;
  template <class F> void fields(F&& f) {
    f("groups", groups), f("cin", cin), f("cout", cout), window.fields(f);
  }
};

enum class PoolKind : int64_t { kMax, kSum };

// accumulators [planes, out] = maximum or sum of maps [planes, in] in each window. If `first` is 0,
// the maximum or sum includes the previous accumulators.
struct Pool {
  PoolKind kind = PoolKind::kMax;
  int64_t first = 1, planes = 0;
  Window window;
  template <class F> void fields(F&& f) {
    f("kind", kind), f("first", first), f("planes", planes), window.fields(f);
  }
};

// accumulators [planes, d, h, w] /= depth[d] · height[h] · width[w]. The result has `gain` more
// fractional bits, or fewer if it is negative.
struct Divide {
  int64_t planes = 0, gain = 0;
  std::vector<int64_t> depth, height, width;
  template <class F> void fields(F&& f) {
    f("planes", planes), f("gain", gain), f("depth", depth), f("height", height), f("width", width);
  }
};

// accumulators = maps
struct Move {
  int64_t count = 0;
  template <class F> void fields(F&& f) { f("count", count); }
};

enum class CombineKind : int64_t { kAdd, kSub, kMul };

// accumulators = (maps << maps_shift) add, sub or mul (weights << weights_shift). The second
// operand is in the buffer of weights.
struct Combine {
  CombineKind kind = CombineKind::kAdd;
  int64_t count = 0, maps_shift = 0, weights_shift = 0;
  template <class F> void fields(F&& f) {
    f("kind", kind), f("count", count), f("maps_shift", maps_shift),
        f("weights_shift", weights_shift);
  }
};

enum class Function : int64_t { kNone, kLeakyRelu, kTanh, kSigmoid };

// accumulators = function(accumulators), converted from fraction_in to fraction_out
struct Activate {
  Function function = Function::kNone;
  int64_t count = 0, fraction_in = 0, fraction_out = 0;
  double parameter = 0;
  template <class F> void fields(F&& f) {
    f("function", function), f("count", count), f("fraction_in", fraction_in);
    f("fraction_out", fraction_out), f("parameter", parameter);
  }
};

// accumulators [rows, columns] = softmax of each row of maps
struct Softmax {
  int64_t rows = 0, columns = 0, fraction_in = 0, fraction_out = 0;
  template <class F> void fields(F&& f) {
    f("rows", rows), f("columns", columns), f("fraction_in", fraction_in),
        f("fraction_out", fraction_out);
  }
};

// Number of fractional bits of a weight of Interpolate.
inline constexpr int64_t kLerpFraction = 14;

// accumulators [outer, out, inner] = maps[outer, first[out], inner] · (1 - weight[out])
// + maps[outer, second[out], inner] · weight[out]
struct Interpolate {
  int64_t outer = 0, in = 0, inner = 0;
  std::vector<int64_t> first, second;
  std::vector<double> weight;
  template <class F> void fields(F&& f) {
    f("outer", outer), f("in", in), f("inner", inner), f("first", first), f("second", second);
    f("weight", weight);
  }
};

// Store of the accumulators, of the sizes `dims`, to memory. They are shifted right by `shift` and
// clamped to [low, high].
struct Store {
  int64_t address = 0;
  Index dims{}, strides{};
  int64_t shift = 0;
  double low = 0, high = 0; // in the format of stored numbers
  template <class F> void fields(F&& f) {
    f("address", address), f("dims", dims), f("strides", strides), f("shift", shift);
    f("low", low), f("high", high);
  }
};

using Instruction = std::variant<Load, Accumulate, Convolve, Pool, Divide, Move, Combine, Activate,
                                 Softmax, Interpolate, Store>;
inline constexpr const char* kOpcodes[] = {"load",    "accumulate",  "convolve", "pool",
                                           "divide",  "move",        "combine",  "activate",
                                           "softmax", "interpolate", "store"};

// Instructions of one layer, for each cluster.
using Code = std::vector<std::vector<Instruction>>;

// Cycles and bytes of one run of a layer, according to the cycle model.
struct Cost {
  int64_t cycles = 0, compute_cycles = 0, memory_cycles = 0, transfer_cycles = 0;
  int64_t macs = 0, bytes_loaded = 0, bytes_stored = 0, bytes_transferred = 0;
  int64_t tiles = 0, clusters = 0, cards = 0;
  template <class F> void fields(F&& f) {
    f("cycles", cycles), f("compute_cycles", compute_cycles), f("memory_cycles", memory_cycles);
    f("transfer_cycles", transfer_cycles), f("macs", macs), f("bytes_loaded", bytes_loaded);
    f("bytes_stored", bytes_stored), f("bytes_transferred", bytes_transferred);
    f("tiles", tiles), f("clusters", clusters), f("cards", cards);
  }
};

// Dense tensor on the card. Its byte address counts from the start of the network's memory.
struct Placed {
  std::string name;
  Shape shape;
  int64_t address = 0, fraction = 0;
  template <class F> void fields(F&& f) {
    f("name", name), f("shape", shape), f("address", address), f("fraction", fraction);
  }
};

// Weights that ie_write_weights may replace.
struct Weighted {
  int64_t weights = 0, weight_elements = 0, weight_fraction = 0;
  int64_t bias = -1, bias_elements = 0, bias_fraction = 0; // `bias` is -1 without a bias
  int64_t linear = 0;
  template <class F> void fields(F&& f) {
    f("weights", weights), f("weight_elements", weight_elements),
        f("weight_fraction", weight_fraction);
    f("bias", bias), f("bias_elements", bias_elements), f("bias_fraction", bias_fraction);
    f("linear", linear);
  }
};

struct ProgramLayer {
  std::string name, type; // name and type of the ONNX node
  Placed output;
  Code code;     // tiles that fit the board's buffers, by cluster
  Code software; // the layer as one tile, for the reference software
  Cost cost;
  template <class F> void fields(F&& f) {
    f("name", name), f("type", type), f("output", output), f("code", code), f("software", software);
    f("cost", cost);
  }
};

struct Program {
  Precision precision = Precision::kFixed16;
  std::string board;
  double clock_mhz = 0;
  int64_t clusters = 0; // on all cards together
  int64_t macs_per_cycle = 0;
  int64_t maps_bytes = 0, weights_bytes = 0, accumulators = 0;
  int64_t buffers = 0;
  int64_t memory_bytes = 0;                    // memory for weights and all tensors
  int64_t input_cycles = 0, output_cycles = 0; // between host and card, for one inference
  std::vector<Placed> inputs, outputs;
  std::vector<Weighted> weighted;
  std::vector<ProgramLayer> layers;
  std::string constants; // first bytes of the memory, in the device's format
  template <class F> void fields(F&& f) {
    f("precision", precision), f("board", board), f("clock_mhz", clock_mhz),
        f("clusters", clusters);
    f("macs_per_cycle", macs_per_cycle), f("maps_bytes", maps_bytes);
    f("weights_bytes", weights_bytes), f("accumulators", accumulators), f("buffers", buffers);
    f("memory_bytes", memory_bytes), f("input_cycles", input_cycles);
    f("output_cycles", output_cycles), f("inputs", inputs), f("outputs", outputs);
    f("weighted", weighted), f("layers", layers), f("constants", constants);
  }
};

} // namespace mdla
