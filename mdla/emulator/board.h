// The configured board: what the compiler tiles for and the cycle model counts with.
#pragma once

#include <cstdint>
#include <string>

namespace mdla {

// Between these are the numbers of a board.
inline constexpr double kLeastFigure = 1e-3, kMostFigure = 1e15;

struct Board {
  std::string name;
  double clock_mhz = 0;
  int64_t clusters = 0, fpgas = 0;
  int64_t macs_per_cluster = 0; // multiply-accumulates each cycle
  int64_t mac_vector = 0;       // of these, how many share one output in cooperative mode
  int64_t vector_lanes = 0;     // elements a cycle of every other unit
  int64_t maps_bytes = 0, weights_bytes = 0, accumulators = 0; // of each cluster
  int64_t memory_bytes = 0;
  double bandwidth_gb_s = 0; // of a card's memory, in each direction
  double host_gb_s = 0;      // between host and cards, in each direction
  int64_t instruction_cycles = 0, latency_cycles = 0;
  int64_t buffers = 0; // of asynchronous inferences

  double bytes_per_cycle() const { return bandwidth_gb_s * 1e3 / clock_mhz; }
  double host_bytes_per_cycle() const { return host_gb_s * 1e3 / clock_mhz; }
};

// Reads a board's text: "key = value" in each line, "#" starts a comment.
Board parse_board(const std::string& text);
// The board of the file at `path`; the shipped board for "".
Board read_board(const std::string& path);

} // namespace mdla
