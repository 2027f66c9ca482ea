// A device program as a file: magic, version, length and checksum, then the program's fields.
#pragma once

#include "program.h"

#include <string>

namespace mdla {

std::string write_binary(const Program& program);
// A file of that payload.
std::string sealed(const std::string& payload);

// A Fault for a file of another kind or version, a damaged one, and one whose program cannot be run
// on a card of `card_bytes`.
Program read_binary(const std::string& bytes, int64_t card_bytes);

} // namespace mdla
