// Files of device programs: magic, version, length and checksum, then the program's fields.
#pragma once

#include "program.h"

#include <string>

namespace mdla {

std::string write_binary(const Program& program);
// Return the bytes of a file with that payload.
std::string sealed(const std::string& payload);

// Read the program in the bytes of a file. Throw Fault if the file is of another kind or version,
// is damaged, or has a program that a card of `card_bytes` cannot run.
Program read_binary(const std::string& bytes, int64_t card_bytes);

} // namespace mdla
