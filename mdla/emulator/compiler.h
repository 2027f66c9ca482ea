// Compiler from a network to a device program: number formats, addresses, tiles, clusters.
#pragma once

#include "network.h"

namespace mdla {

struct Target {
  Precision precision = Precision::kFixed16;
  Board board;
  int64_t clusters = 1, fpgas = 1;
  int64_t headroom = 0; // extra integer bits of formats above the largest calibration value
};

// Compile `network`. ranges: the largest absolute value of each tensor in calibration, or empty.
Program compile(const Network& network, const Target& target, const std::vector<double>& ranges);

// Return the largest absolute value of each tensor when the network runs on the samples in float32.
// Each sample is a full set of inputs.
std::vector<double> calibrate(const Network& network, const Target& target,
                              const std::vector<std::vector<const float*>>& samples);

} // namespace mdla
