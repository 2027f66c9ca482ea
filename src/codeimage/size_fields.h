// Readers of sizes that depend on a call's sizes (torchmdla/packages/fields.py writes them).
// They need neither torch nor Python.
#pragma once

#include "base/byte_reader.h"
#include "polynomial.h"
#include "size_program.h"

#include <cstddef>

namespace torchmdla {

// These functions are safe for any bytes: they throw BadBytes if the bytes are malformed.
// `symbols` is the number of symbols, including the computed ones.
Polynomial read_polynomial(ByteReader& reader, size_t symbols);

// Read which of `count` numbers vary, and their polynomials.
Varying read_varying(ByteReader& reader, size_t count, size_t symbols);

// Read a program that computes further symbols from `symbols` given ones.
SizeProgram read_size_program(ByteReader& reader, size_t symbols);

} // namespace torchmdla
