// Runs a device program on a card's memory.
#pragma once

#include "program.h"

namespace mdla {

enum class Run { kDevice, kSoftware };

// One inference of a verified program: the inputs are in memory, and the outputs will be. `memory`
// has program.memory_bytes, of which the constants are the first.
void execute(const Program& program, Run run, uint8_t* memory);

// Floats to and from the device's format.
void encode(const float* values, int64_t count, Precision precision, int64_t fraction,
            bool as_accumulators, void* bytes);
void write_tensor(const Placed& tensor, Precision precision, const float* values, uint8_t* memory);
void read_tensor(const Placed& tensor, Precision precision, const uint8_t* memory, float* values);

} // namespace mdla
