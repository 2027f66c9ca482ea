// Verification that a device program stays in its memory and its buffers.
#pragma once

#include "program.h"

namespace mdla {

// Check every number of a program. A program that passes can run without further checks. Throw
// Fault if it leaves its memory or a buffer, or if it needs more than a card of `card_bytes`.
void verify(const Program& program, int64_t card_bytes);

} // namespace mdla
