#include "compiler.h"

#include "cycles.h"
#include "executor.h"
#include "tiles.h"
#include "verifier.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

namespace mdla {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kFixed16Fraction = 8, kFixed8Fraction = 4;

double largest(const std::vector<float>& values) {
  double most = 0;
  for (float value : values)
    most = std::max(most, std::fabs(static_cast<double>(value)));
  return most;
}

// Return the largest number of fractional bits with which values up to `most` do not saturate.
int64_t fraction_for(double most, Precision precision) {
  double high = stored_range(precision).high;
  int64_t fraction = kHighestFraction;
  while (fraction > kLowestFraction && std::ldexp(most, static_cast<int>(fraction)) > high)
    --fraction;
  return fraction;
}

// Return an upper bound on the absolute values of a layer's output, for all inputs.
double bound_of(const Layer& layer) {
  double bound = std::max(std::fabs(layer.low), std::fabs(layer.high));
  const auto* move = std::get_if<MoveLayer>(&layer.operation);
  bool saturates =
      std::holds_alternative<SoftmaxLayer>(layer.operation) ||
      (move && (move->function == Function::kTanh || move->function == Function::kSigmoid));
  return saturates ? std::min(bound, 1.0) : bound;
}

// Return the range that each tensor's format must represent: that of calibration, widened by
// `headroom` bits up to the bound of the layer's values.
std::vector<double> with_headroom(const Network& network, std::vector<double> ranges,
                                  int64_t headroom) {
  std::vector<double> bounds(ranges.size(), std::numeric_limits<double>::infinity());
  if (ranges.empty()) return ranges;
  for (const Layer& layer : network.layers)
    bounds[layer.output] = bound_of(layer);
  for (size_t id = 0; id < ranges.size(); ++id) {
    double wider = std::ldexp(ranges[id], static_cast<int>(headroom));
    ranges[id] = std::max(ranges[id], std::min(wider, bounds[id]));
  }
  return ranges;
}

std::vector<int64_t> choose_fractions(const Network& network, Precision precision,
                                      const std::vector<double>& ranges) {
  std::vector<int64_t> fractions;
  for (size_t id = 0; id < network.tensors.size(); ++id) {
    const Tensor& tensor = network.tensors[id];
    bool weights = !tensor.constant.empty();
    int64_t fraction = 0;
    if (precision == Precision::kFixed16)
      fraction = kFixed16Fraction;
    else if (precision == Precision::kFloat32)
      fraction = 0;
    else if (weights)
      fraction = fraction_for(largest(tensor.constant), precision);
    else if (!ranges.empty())
      fraction = fraction_for(ranges[id], precision);
    else
      fraction = kFixed8Fraction;
    fractions.push_back(fraction);
  }
  // A bias has the format of the products to which it is added.
  for (const Layer& layer : network.layers)
    if (const auto* conv = std::get_if<ConvLayer>(&layer.operation);
        conv && conv->bias != kNoTensor)
      fractions[conv->bias] = fractions[conv->x.tensor] + fractions[conv->w.tensor];
  return fractions;
}

int64_t tensor_bytes(const Tensor& tensor, Precision precision) {
  return checked_product(elements(tensor.shape),
                         tensor.is_bias ? accumulator_bytes(precision) : element_bytes(precision));
}

// Assign addresses to constants, then to computed tensors, and return the end. Memory is never
// reused, so that every layer's output can be read after a run.
int64_t place(const Network& network, Placement& placement) {
  placement.address.resize(network.tensors.size());
  int64_t end = 0;
  for (bool constant : {true, false})
    for (size_t id = 0; id < network.tensors.size(); ++id) {
      const Tensor& tensor = network.tensors[id];
      if (tensor.constant.empty() == constant) continue;
      placement.address[id] = end;
      end = checked_sum(end, ceil_div(tensor_bytes(tensor, placement.precision), kAlignment) *
                                 kAlignment);
    }
  return end;
}

std::string encode_constants(const Network& network, const Placement& placement) {
  std::string bytes;
  for (size_t id = 0; id < network.tensors.size(); ++id) {
    const Tensor& tensor = network.tensors[id];
    if (tensor.constant.empty()) continue;
    bytes.resize(placement.address[id] + tensor_bytes(tensor, placement.precision));
    encode(tensor.constant.data(), elements(tensor.shape), placement.precision,
           placement.fraction[id], tensor.is_bias, bytes.data() + placement.address[id]);
  }
  bytes.resize(ceil_div(static_cast<int64_t>(bytes.size()), kAlignment) * kAlignment);
  return bytes;
}

// Remove a load that equals the previous load into the same buffer.
void drop_repeated_loads(std::vector<Instruction>& code) {
  std::optional<Load> held[2];
  std::vector<Instruction> remaining;
  for (Instruction& instruction : code) {
    if (const Load* load = std::get_if<Load>(&instruction)) {
      std::optional<Load>& last = held[static_cast<int>(load->unit)];
      if (last == *load) continue;
      last = *load;
    }
    remaining.push_back(std::move(instruction));
  }
  code = std::move(remaining);
}

// Distribute tiles to clusters. Adjacent tiles go to the same cluster, so that it can reuse their
// weights or maps.
Code distribute(const std::vector<Tile>& tiles, int64_t clusters) {
  int64_t count = static_cast<int64_t>(tiles.size()), each = ceil_div(count, clusters);
  Code code;
  for (int64_t first = 0; first < count; first += each) {
    std::vector<Instruction>& cluster = code.emplace_back();
    for (int64_t index = first; index < std::min(first + each, count); ++index)
      cluster.insert(cluster.end(), tiles[index].begin(), tiles[index].end());
    drop_repeated_loads(cluster);
  }
  return code;
}

// Return the sizes of half of each buffer: one half contains a tile while the other is filled.
Budget tile_budget(const Target& target) {
  int64_t bytes = element_bytes(target.precision);
  return {target.board.maps_bytes / 2 / bytes, target.board.weights_bytes / 2 / bytes,
          target.board.accumulators, true, true};
}

std::vector<Budget> candidate_budgets(const Budget& whole) {
  std::vector<Budget> budgets;
  for (int64_t parts = 1; parts <= 64; parts *= 2)
    for (bool channels_first : {true, false})
      for (bool weights_stay : {true, false})
        budgets.push_back({whole.maps, whole.weights,
                           std::max<int64_t>(whole.accumulators / parts, 1), channels_first,
                           weights_stay});
  return budgets;
}

// Limit on the tiles per cluster. Finer candidates are skipped once there is code for the layer.
constexpr int64_t kManyTiles = 256;

void emit(const Layer& layer, const Placement& placement, const Target& target,
          const Holdings& holdings, ProgramLayer& program_layer) {
  std::string problem;
  for (const Budget& budget : candidate_budgets(tile_budget(target))) {
    std::vector<Tile> tiles;
    try {
      tiles = make_tiles(layer, placement, budget);
    } catch (const Fault& fault) {
      if (problem.empty()) problem = fault.what();
      continue;
    }
    int64_t count = static_cast<int64_t>(tiles.size()), all = target.clusters * target.fpgas;
    if (count > kManyTiles * all && !program_layer.code.empty()) continue;
    for (int64_t clusters = 1; clusters <= std::min(all, count); ++clusters) {
      Code code = distribute(tiles, clusters);
      int64_t used = static_cast<int64_t>(code.size());
      for (int64_t cards = ceil_div(used, target.clusters); cards <= std::min(used, target.fpgas);
           ++cards) {
        Cost cost = layer_cost(code, target.precision, target.board, cards, holdings);
        if (!program_layer.code.empty() && cost.cycles >= program_layer.cost.cycles) continue;
        program_layer.code = code, program_layer.cost = cost;
      }
    }
  }
  if (program_layer.code.empty()) throw Fault(problem);
}

void emit_software(const Layer& layer, const Placement& placement, ProgramLayer& program_layer) {
  constexpr int64_t kUnlimited = int64_t{1} << 40;
  program_layer.software =
      distribute(make_tiles(layer, placement, {kUnlimited, kUnlimited, kUnlimited, true, true}), 1);
}

// Return the code of all layers, for at most as many cards as `target` has.
std::vector<ProgramLayer> emit_layers(const Network& network, const Placement& placement,
                                      const Target& target) {
  Holdings holdings;
  for (size_t id = 0; id < network.tensors.size(); ++id)
    holdings.on_all_cards(placement.address[id]);
  std::vector<ProgramLayer> layers;
  for (const Layer& layer : network.layers) {
    ProgramLayer& program_layer = layers.emplace_back();
    emit(layer, placement, target, holdings, program_layer);
    holdings.computed(placement.address[layer.output], program_layer.cost.cards);
  }
  return layers;
}

// Return the layers for the number of cards with the fewest cycles. The code of each layer is
// chosen separately, so more cards may be slower.
std::vector<ProgramLayer> fastest_layers(const Network& network, const Placement& placement,
                                         const Target& target) {
  std::vector<ProgramLayer> best;
  int64_t least = 0;
  for (int64_t cards = 1; cards <= target.fpgas; ++cards) {
    Target fewer = target;
    fewer.fpgas = cards;
    std::vector<ProgramLayer> layers = emit_layers(network, placement, fewer);
    int64_t cycles = 0;
    for (const ProgramLayer& layer : layers)
      cycles += layer.cost.cycles;
    if (best.empty() || cycles < least) best = std::move(layers), least = cycles;
  }
  return best;
}

Placed placed(const std::string& name, const Shape& shape, TensorId tensor,
              const Placement& placement) {
  return {name, shape, placement.address[tensor], placement.fraction[tensor]};
}

std::vector<Weighted> weighted_layers(const Network& network, const Placement& placement) {
  std::vector<Weighted> weighted;
  for (const Layer& layer : network.layers) {
    const auto* conv = std::get_if<ConvLayer>(&layer.operation);
    if (!conv || network.tensors[conv->w.tensor].constant.empty()) continue;
    Weighted entry;
    entry.weights = placement.address[conv->w.tensor];
    entry.weight_elements = elements(network.tensors[conv->w.tensor].shape);
    entry.weight_fraction = placement.fraction[conv->w.tensor];
    entry.linear = conv->linear;
    if (conv->bias != kNoTensor) {
      entry.bias = placement.address[conv->bias];
      entry.bias_elements = elements(network.tensors[conv->bias].shape);
      entry.bias_fraction = placement.fraction[conv->bias];
    }
    weighted.push_back(entry);
  }
  return weighted;
}

} // namespace

Program compile(const Network& network, const Target& target, const std::vector<double>& ranges) {
  std::vector<double> wider = with_headroom(network, ranges, target.headroom);
  Placement placement{target.precision, {}, choose_fractions(network, target.precision, wider)};
  Program program;
  program.precision = target.precision;
  program.memory_bytes = place(network, placement);
  require(program.memory_bytes <= target.board.memory_bytes, "the network needs ",
          program.memory_bytes, " bytes of the card's ", target.board.memory_bytes);
  program.board = target.board.name, program.clock_mhz = target.board.clock_mhz;
  program.clusters = target.clusters * target.fpgas;
  program.macs_per_cycle = program.clusters * target.board.macs_per_cluster;
  program.maps_bytes = target.board.maps_bytes / 2,
  program.weights_bytes = target.board.weights_bytes / 2;
  program.accumulators = target.board.accumulators, program.buffers = target.board.buffers;
  for (const Network::Port& port : network.inputs)
    program.inputs.push_back(placed(port.name, port.shape, port.tensor, placement));
  for (const Network::Port& port : network.outputs)
    program.outputs.push_back(placed(port.name, port.shape, port.tensor, placement));
  program.input_cycles = host_cycles(program.inputs, target.precision, target.board);
  program.output_cycles = host_cycles(program.outputs, target.precision, target.board);
  program.weighted = weighted_layers(network, placement);
  program.constants = encode_constants(network, placement);
  program.layers = fastest_layers(network, placement, target);
  for (size_t index = 0; index < network.layers.size(); ++index) {
    const Layer& layer = network.layers[index];
    const Tensor& output = network.tensors[layer.output];
    ProgramLayer& program_layer = program.layers[index];
    program_layer.name = layer.name, program_layer.type = layer.type;
    program_layer.output = placed(output.name, output.shape, layer.output, placement);
    emit_software(layer, placement, program_layer);
  }
  verify(program, target.board.memory_bytes);
  return program;
}

std::vector<double> calibrate(const Network& network, const Target& target,
                              const std::vector<std::vector<const float*>>& samples) {
  Target floats = target;
  floats.precision = Precision::kFloat32;
  Program program = compile(network, floats, {});
  Placement placement{Precision::kFloat32, {}, {}};
  place(network, placement);
  std::vector<double> ranges(network.tensors.size(), 0);
  std::vector<uint8_t> memory(program.memory_bytes);
  std::memcpy(memory.data(), program.constants.data(), program.constants.size());
  for (const std::vector<const float*>& sample : samples) {
    for (size_t index = 0; index < sample.size(); ++index)
      write_tensor(program.inputs[index], program.precision, sample[index], memory.data());
    execute(program, Run::kSoftware, memory.data());
    for (size_t id = 0; id < network.tensors.size(); ++id) {
      std::vector<float> values(elements(network.tensors[id].shape));
      std::memcpy(values.data(), memory.data() + placement.address[id],
                  values.size() * sizeof(float));
      ranges[id] = std::max(ranges[id], largest(values));
    }
  }
  return ranges;
}

} // namespace mdla
