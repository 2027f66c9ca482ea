#include "verifier.h"

#include "report.h"

#include <algorithm>
#include <cmath>

namespace mdla {
namespace {

// Limit on the length of a sum of int16 products. Shorter sums are exact in a double.
constexpr int64_t kLongestSum = int64_t{1} << 22;
// Limits on shifts of operands before an addition and before a multiplication. Results fit in 64
// bits.
constexpr int64_t kMostShift = 40, kMostFactorShift = 16;
// Limit on shifts of sums before they are stored, in both directions.
constexpr int64_t kMostStoreShift = 62;
// Limit on the elements of an average, and on the bits that it has more or fewer than its operand.
constexpr int64_t kMostAveraged = int64_t{1} << 40;
constexpr int64_t kMostGain = 62, kMostLoss = 22;
// Limit on a cost. Doubles represent integers exactly up to here.
constexpr int64_t kMostCost = int64_t{1} << 53;

void check(bool holds, const char* what) {
  require(holds, "the program is damaged: ", what);
}

bool between(int64_t value, int64_t low, int64_t high) {
  return value >= low && value <= high;
}

// Return the number of elements of a tile. Check that it is between 1 and `limit`.
template <class Sizes> int64_t tile_elements(const Sizes& sizes, int64_t limit) {
  int64_t count = 1;
  for (int64_t size : sizes) {
    check(size >= 1, "a size below 1");
    check(!__builtin_mul_overflow(count, size, &count) && count <= limit,
          "a tile larger than its buffer");
  }
  return count;
}

// Check the fraction of an operand, or the sum of two fractions.
void check_fraction(int64_t fraction) {
  check(between(fraction, 2 * kLowestFraction, 2 * kHighestFraction), "a fraction out of range");
}

// Memory of a program on the card.
class Memory {
public:
  explicit Memory(const Program& program)
      : bytes_(program.memory_bytes), element_(element_bytes(program.precision)) {}

  void check_region(int64_t address, int64_t count, int64_t element) const {
    check(count >= 1 && address >= 0 && address % element == 0 && address <= bytes_ &&
              count <= (bytes_ - address) / element,
          "an address outside the memory");
  }
  void check_strided(int64_t address, const Index& counts, const Index& strides) const {
    __int128 low = address, high = static_cast<__int128>(address) + element_;
    for (int axis = 0; axis < kRank; ++axis) {
      __int128 reach = static_cast<__int128>(counts[axis] - 1) * strides[axis] * element_;
      (reach < 0 ? low : high) += reach;
    }
    check(low >= 0 && high <= bytes_ && address % element_ == 0, "an address outside the memory");
  }
  void check_tensor(const Placed& tensor) const {
    check_region(tensor.address, tile_elements(tensor.shape, bytes_), element_);
    check_fraction(tensor.fraction);
  }

private:
  int64_t bytes_, element_;
};

// Visitor of one cluster's instructions. It tracks the contents of the buffers and checks operands.
class CheckedCluster {
public:
  // Number of elements of each buffer.
  struct Limits {
    int64_t maps, weights, sums;
  };

  CheckedCluster(Precision precision, const Memory& memory, const Limits& limits)
      : precision_(precision), memory_(memory), limits_(limits) {}

  void operator()(const Load& load);
  void operator()(const Accumulate& accumulate);
  void operator()(const Convolve& convolve) const;
  void operator()(const Pool& pool);
  void operator()(const Divide& divide) const;
  void operator()(const Move& move);
  void operator()(const Combine& combine);
  void operator()(const Activate& activate) const;
  void operator()(const Softmax& softmax);
  void operator()(const Interpolate& interpolate);
  void operator()(const Store& store) const;

private:
  bool fixed() const { return precision_ != Precision::kFloat32; }
  static void check_window(const Window& window);
  static void check_loaded(int64_t loaded, int64_t count) {
    check(between(count, 1, loaded), "an operand that is not loaded");
  }
  void check_summed(int64_t count) const { check(between(count, 1, sums_), "no sums to work on"); }
  void start_sums(int64_t count) {
    check(between(count, 1, limits_.sums), "a tile larger than the accumulators");
    sums_ = count;
  }
  // Check a number that is stored. A fixed-point number must be in the range of the format.
  void check_stored(double value) const {
    StoredRange range = stored_range(precision_);
    check(!fixed() || (value >= range.low && value <= range.high), "a number out of range");
  }

  Precision precision_;
  const Memory& memory_;
  Limits limits_;
  int64_t maps_ = 0, weights_ = 0, sums_ = 0;
};

void CheckedCluster::operator()(const Load& load) {
  check(load.unit == Unit::kMaps || load.unit == Unit::kWeights, "a unit that does not exist");
  bool maps = load.unit == Unit::kMaps, any = true;
  (maps ? maps_ : weights_) = tile_elements(load.dims, maps ? limits_.maps : limits_.weights);
  for (int axis = 0; axis < kRank; ++axis) {
    int64_t size = load.dims[axis], extent = load.extent[axis], offset = load.offset[axis];
    check(
        between(extent, 0, size) && between(offset, 0, size) && load.spread[axis] >= 1 &&
            (extent == 0 || offset + static_cast<__int128>(extent - 1) * load.spread[axis] < size),
        "a load beside its tile");
    any = any && extent > 0;
  }
  check_stored(load.fill);
  if (any) memory_.check_strided(load.address, load.extent, load.strides);
}

void CheckedCluster::operator()(const Accumulate& accumulate) {
  start_sums(
      tile_elements(std::array<int64_t, 2>{accumulate.channels, accumulate.pixels}, limits_.sums));
  if (accumulate.address >= 0)
    memory_.check_region(accumulate.address, accumulate.channels, accumulator_bytes(precision_));
}

void CheckedCluster::check_window(const Window& window) {
  for (int axis = 0; axis < 3; ++axis) {
    bool positive = window.out[axis] >= 1 && window.kernel[axis] >= 1 && window.stride[axis] >= 1 &&
                    window.dilation[axis] >= 1;
    check(positive &&
              static_cast<__int128>(window.out[axis] - 1) * window.stride[axis] +
                      static_cast<__int128>(window.kernel[axis] - 1) * window.dilation[axis] <
                  window.in[axis],
          "a window that leaves its tile");
  }
}

void CheckedCluster::operator()(const Convolve& convolve) const {
  const Window& window = convolve.window;
  check_window(window);
  int64_t groups = convolve.groups, cin = convolve.cin, cout = convolve.cout;
  auto of_buffer = [](std::array<int64_t, 2> channels, const Spatial& space, int64_t held) {
    return checked_product(tile_elements(channels, held), tile_elements(space, held));
  };
  check_loaded(maps_, of_buffer({groups, cin}, window.in, maps_));
  int64_t depth = of_buffer({1, cin}, window.kernel, weights_);
  check(depth < kLongestSum, "a sum that is too long");
  check_loaded(weights_, checked_product(tile_elements(std::array{groups, cout}, weights_), depth));
  check_summed(of_buffer({groups, cout}, window.out, sums_));
}

void CheckedCluster::operator()(const Pool& pool) {
  const Window& window = pool.window;
  check(pool.kind == PoolKind::kMax || pool.kind == PoolKind::kSum, "a pool that does not exist");
  check(between(pool.first, 0, 1), "a flag that is neither 0 nor 1");
  check_window(window);
  int64_t planes = tile_elements(std::array{pool.planes}, maps_);
  check_loaded(maps_, checked_product(planes, tile_elements(window.in, maps_)));
  int64_t count = checked_product(planes, tile_elements(window.out, limits_.sums));
  if (pool.first) start_sums(count);
  check_summed(count);
}

void CheckedCluster::operator()(const Divide& divide) const {
  check(between(divide.gain, -kMostLoss, kMostGain), "a division out of range");
  int64_t count = tile_elements(std::array{divide.planes}, sums_), most = 1;
  for (const std::vector<int64_t>* along : {&divide.depth, &divide.height, &divide.width}) {
    count = checked_product(count, static_cast<int64_t>(along->size()));
    check(!along->empty(), "a division by nothing");
    auto [low, high] = std::minmax_element(along->begin(), along->end());
    check(*low >= 1 && !__builtin_mul_overflow(most, *high, &most) && most < kMostAveraged,
          "a division out of range");
  }
  check_summed(count);
}

void CheckedCluster::operator()(const Move& move) {
  check_loaded(maps_, move.count);
  start_sums(move.count);
}

void CheckedCluster::operator()(const Combine& combine) {
  check(combine.kind == CombineKind::kAdd || combine.kind == CombineKind::kSub ||
            combine.kind == CombineKind::kMul,
        "a combination that does not exist");
  int64_t most = combine.kind == CombineKind::kMul ? kMostFactorShift : kMostShift;
  check(between(combine.maps_shift, 0, most) && between(combine.weights_shift, 0, most),
        "a shift out of range");
  check_loaded(maps_, combine.count);
  check_loaded(weights_, combine.count);
  start_sums(combine.count);
}

void CheckedCluster::operator()(const Activate& activate) const {
  check(activate.function == Function::kLeakyRelu || activate.function == Function::kTanh ||
            activate.function == Function::kSigmoid,
        "a function that does not exist");
  check_fraction(activate.fraction_in);
  check_fraction(activate.fraction_out);
  check_summed(activate.count);
}

void CheckedCluster::operator()(const Softmax& softmax) {
  check_fraction(softmax.fraction_in);
  check_fraction(softmax.fraction_out);
  int64_t count = tile_elements(std::array{softmax.rows, softmax.columns}, limits_.sums);
  check_loaded(maps_, count);
  start_sums(count);
}

void CheckedCluster::operator()(const Interpolate& interpolate) {
  size_t out = interpolate.first.size();
  check(interpolate.second.size() == out && interpolate.weight.size() == out,
        "an interpolation without all its weights");
  int64_t outer = interpolate.outer, in = interpolate.in, inner = interpolate.inner;
  check_loaded(maps_, tile_elements(std::array{outer, in, inner}, maps_));
  start_sums(tile_elements(std::array{outer, static_cast<int64_t>(out), inner}, limits_.sums));
  for (const std::vector<int64_t>* places : {&interpolate.first, &interpolate.second})
    for (int64_t place : *places)
      check(between(place, 0, in - 1), "an interpolation beside its tile");
}

void CheckedCluster::operator()(const Store& store) const {
  check_summed(tile_elements(store.dims, sums_));
  memory_.check_strided(store.address, store.dims, store.strides);
  check(between(store.shift, -kMostStoreShift, kMostStoreShift), "a shift out of range");
  check_stored(store.low);
  check_stored(store.high);
  check(store.low <= store.high, "bounds out of range"); // also refuses NaN
}

// Check that no member of a cost is negative and that sums over all layers fit in 64 bits.
void check_costs(const Program& program) {
  check(between(program.input_cycles, 0, kMostCost) && between(program.output_cycles, 0, kMostCost),
        "a cost out of range");
  for (const ProgramLayer& layer : program.layers)
    Cost(layer.cost).fields([](const char*, int64_t part) {
      check(between(part, 0, kMostCost), "a cost out of range");
    });
  total_cost(program);
}

void check_board(const Program& program, int64_t card_bytes) {
  check(program.precision >= Precision::kFloat32 && program.precision <= Precision::kVariable,
        "an unknown number format");
  check(between(program.memory_bytes, static_cast<int64_t>(program.constants.size()), card_bytes),
        "more memory than the card has, or less than the constants take");
  check(program.clock_mhz >= kLeastFigure && program.clock_mhz <= kMostFigure,
        "a clock that cannot be");
  check(program.clusters >= 1 && program.macs_per_cycle >= 1 && program.buffers >= 1 &&
            program.maps_bytes >= 0 && program.weights_bytes >= 0 && program.accumulators >= 0,
        "sizes that cannot be");
}

void check_weighted(const Weighted& layer, const Memory& memory, Precision precision) {
  memory.check_region(layer.weights, layer.weight_elements, element_bytes(precision));
  check_fraction(layer.weight_fraction);
  check_fraction(layer.bias_fraction);
  if (layer.bias >= 0)
    memory.check_region(layer.bias, layer.bias_elements, accumulator_bytes(precision));
}

void check_code(const Code& code, Precision precision, const Memory& memory,
                const CheckedCluster::Limits& limits) {
  for (const std::vector<Instruction>& instructions : code) {
    CheckedCluster cluster(precision, memory, limits);
    for (const Instruction& instruction : instructions)
      std::visit(cluster, instruction);
  }
}

} // namespace

void verify(const Program& program, int64_t card_bytes) {
  check_board(program, card_bytes);
  check_costs(program);
  Memory memory(program);
  for (const std::vector<Placed>* tensors : {&program.inputs, &program.outputs})
    for (const Placed& tensor : *tensors)
      memory.check_tensor(tensor);
  for (const Weighted& layer : program.weighted)
    check_weighted(layer, memory, program.precision);
  // The software code has one tile per layer. Padding can make it larger than the layer's tensors,
  // so its limit is the size of the card.
  int64_t element = element_bytes(program.precision);
  CheckedCluster::Limits software{card_bytes, card_bytes, card_bytes};
  CheckedCluster::Limits device{std::min(card_bytes, program.maps_bytes / element),
                                std::min(card_bytes, program.weights_bytes / element),
                                std::min(card_bytes, program.accumulators)};
  for (const ProgramLayer& layer : program.layers) {
    memory.check_tensor(layer.output);
    check_code(layer.code, program.precision, memory, device);
    check_code(layer.software, program.precision, memory, software);
  }
}

} // namespace mdla
