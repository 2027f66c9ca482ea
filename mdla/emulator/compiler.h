// A network to a device program: number formats, places in memory, tiles, clusters.
#pragma once

#include "network.h"

namespace mdla {

struct Target {
  Precision precision = Precision::kFixed16;
  Board board;
  int64_t clusters = 1, fpgas = 1;
  int64_t headroom = 0; // bits that formats have above the largest value of calibration
};

// ranges: the largest absolute value of each tensor in calibration, or empty.
Program compile(const Network& network, const Target& target, const std::vector<double>& ranges);

// The largest absolute value that each tensor takes on samples, each a full set of inputs. The
// network runs in float32.
std::vector<double> calibrate(const Network& network, const Target& target,
                              const std::vector<std::vector<const float*>>& samples);

} // namespace mdla
