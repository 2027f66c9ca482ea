// Random numbers on the lazy device.
#pragma once

namespace torchmdla::lazy {

// Register kernels that draw on the CPU at the time of the call. A seed gives the CPU's numbers,
// and all graphs that read them get the same numbers. Drawn numbers are inputs of graphs. A call
// whose numbers depend only on sizes (a dropout's mask) therefore does not end a graph.
void register_random();

} // namespace torchmdla::lazy
