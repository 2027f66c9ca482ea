// Execution of a device program on a card's memory.
#pragma once

#include "program.h"

namespace mdla {

enum class Run { kDevice, kSoftware };

// Run one inference of a verified program. It reads the inputs from `memory` and writes the outputs
// there. `memory` has program.memory_bytes bytes and begins with the constants.
void execute(const Program& program, Run run, uint8_t* memory);

// Convert floats to and from the device's format.
void encode(const float* values, int64_t count, Precision precision, int64_t fraction,
            bool as_accumulators, void* bytes);
void write_tensor(const Placed& tensor, Precision precision, const float* values, uint8_t* memory);
void read_tensor(const Placed& tensor, Precision precision, const uint8_t* memory, float* values);

} // namespace mdla
