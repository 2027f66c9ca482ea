// Whether a device program keeps to its memory and its buffers.
#pragma once

#include "program.h"

namespace mdla {

// Looks at every number of a program, once: what passes can be run without further checks. A Fault
// for one that leaves its memory or a buffer, or needs more than a card of `card_bytes`.
void verify(const Program& program, int64_t card_bytes);

} // namespace mdla
