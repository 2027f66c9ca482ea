// Configuration of a board. The compiler uses it for tiling, and the cycle model for its counts.
#pragma once

#include <cstdint>
#include <string>

namespace mdla {

// Smallest and largest allowed numbers in a board's file.
inline constexpr double kLeastFigure = 1e-3, kMostFigure = 1e15;

struct Board {
  std::string name;
  double clock_mhz = 0;
  int64_t clusters = 0, fpgas = 0;
  int64_t macs_per_cluster = 0; // multiply-accumulates per cycle
  int64_t mac_vector = 0;       // number of these that share one output in cooperative mode
  int64_t vector_lanes = 0;     // elements per cycle of every other unit
  int64_t maps_bytes = 0, weights_bytes = 0, accumulators = 0; // per cluster
  int64_t memory_bytes = 0;
  double bandwidth_gb_s = 0; // bandwidth of a card's memory, in each direction
  double host_gb_s = 0;      // between host and cards, in each direction
  int64_t instruction_cycles = 0, latency_cycles = 0;
  int64_t buffers = 0; // buffers for asynchronous inferences

  double bytes_per_cycle() const { return bandwidth_gb_s * 1e3 / clock_mhz; }
  double host_bytes_per_cycle() const { return host_gb_s * 1e3 / clock_mhz; }
};

// Parse a board's text: each line is "key = value", and "#" starts a comment.
Board parse_board(const std::string& text);
// Return the board in the file at `path`, or the shipped board if it is "".
Board read_board(const std::string& path);

} // namespace mdla
