// Programs of the device: lists of instructions over strided operands in memory.
//
// Replace the functions of mychip.c by calls of your driver, and the instructions by yours. code.py
// writes them (its classes Operand and Instruction must match the structures here).

#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { MYCHIP_RANK = 8 };

// Places of operands that are not among the buffers of a call. A place that is not negative is the
// number of a buffer, where 0 is the workspace. The packed buffer k is at -1 - k.
#define MYCHIP_NUMBER INT64_MIN

enum mychip_kind { MYCHIP_MAP, MYCHIP_REDUCE, MYCHIP_PRODUCT };

// Elements of a tensor at offset + Σ index[k] · strides[k], counted in elements of 4 bytes. At the
// place MYCHIP_NUMBER each element is `number`.
struct mychip_operand {
  int64_t place;
  int64_t offset;
  int64_t strides[MYCHIP_RANK];
  double number;
};

// MAP: result[i] = function(operands[0][i], operands[1][i], operands[2][i]) for all i of sizes.
// REDUCE: result[i] = function over the last `reduced` dimensions of operands[0][i, …].
// PRODUCT: result[i, column] = Σ operands[0][i, k] · operands[1][i, k, column]. The first four
// sizes are those of i, then the columns, then three of k. Columns of operand 1 and of the result
// have strides of their own, and operand 0 does not depend on the column.
struct mychip_instruction {
  int32_t kind;
  int32_t function;
  int64_t reduced;
  int64_t sizes[MYCHIP_RANK];
  struct mychip_operand result;
  struct mychip_operand operands[3];
};

// Run a program. `buffers` are those of an entry or a pack of torchmdla's ABI.
int32_t mychip_run(const struct mychip_instruction* code, int64_t bytes, void* const* buffers);

// Run the program in the first packed buffer, which begins with its number of bytes: the entry of
// every program.
int32_t mychip_entry(void* const* buffers);

// Return the name of map or reduction number `function`, or null after the last one.
const char* mychip_map_name(int32_t function);
const char* mychip_reduction_name(int32_t function);

// Return the number of bytes of an instruction.
int64_t mychip_instruction_bytes(void);

#ifdef __cplusplus
}
#endif
