// Random numbers on the lazy device.
#pragma once

namespace torchmdla::lazy {

// Registers kernels that draw on the CPU, at once, as a call does there: the numbers of a seed are
// the CPU's, and stay the same in every graph that reads them. What is drawn is an input of graphs,
// so a call whose numbers depend on sizes alone (a dropout's mask) ends none.
void register_random();

} // namespace torchmdla::lazy
