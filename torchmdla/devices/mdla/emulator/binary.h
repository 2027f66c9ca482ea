// A device program as a file: magic, version, length and checksum, then the program's fields.
#pragma once

#include "program.h"

#include <string>

namespace mdla {

std::string write_binary(const Program& program);

// A Fault for a file of another kind or version, a damaged one, and one whose tensors do not lie in
// its memory.
Program read_binary(const std::string& bytes);

} // namespace mdla
