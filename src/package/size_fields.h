// Sizes that depend on a call's sizes, as files have them (torchmdla/packages/size_fields.py).
// Needs neither torch nor Python.
#pragma once

#include "runtime/polynomial.h"
#include "runtime/size_program.h"
#include "support/byte_reader.h"

#include <cstddef>

namespace torchmdla {

// Whatever they are given, these throw BadBytes or return what is there. `symbols`: how many there
// are, those that are computed among them.
Polynomial read_polynomial(ByteReader& reader, size_t symbols);

// Of `count` numbers, those that vary.
Varying read_varying(ByteReader& reader, size_t count, size_t symbols);

// A program over `symbols` symbols, which computes others.
SizeProgram read_size_program(ByteReader& reader, size_t symbols);

} // namespace torchmdla
