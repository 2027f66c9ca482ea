// Programs of a model: methods as instructions for the machine (machine.h).
#pragma once

#include "operators/operators.h"
#include "value.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace torchmdla::native {

// Type of a parameter, as far as a call checks it.
struct Type {
  // The order of `_KINDS` in torchmdla/packages/native_program.py.
  enum class Kind : uint8_t {
    any,
    none,
    boolean,
    integer,
    real,
    number, // an int, float or bool
    string,
    tensor,
    list,
    dict,
    tuple,
    alternatives // Optional or Union
  };
  Kind kind;
  std::vector<Type> arguments;

  // Return whether the value is of this type. An int in the place of a float becomes one.
  bool accepts(Value& value) const;
};

struct Parameter {
  std::string name, text;
  Type type;
  std::optional<size_t> fallback; // the constant that a call may omit
};

// The order of `_CODES` in torchmdla/packages/native_program.py.
enum class Opcode : uint8_t {
  call,      // outputs, inputs; detail: the operator
  group,     // outputs, inputs; detail: the group
  move,      // outputs and as many inputs
  release,   // outputs: registers that are not read any more
  jump,      // detail: the instruction to go on with
  branch,    // input: a bool; detail: the instruction to go on with if it is false
  loop,      // inputs: the iteration's number, the most iterations, and a bool; detail: the end
  increment, // output: an iteration's number
  get,       // output; detail: the attribute
  set,       // input; detail: the attribute
  finish,    // input: the method's result
  count
};

struct Instruction {
  Opcode code;
  uint32_t outputs, inputs; // number of operands
  uint32_t first;           // place of the first operand
  uint32_t detail;
  uint32_t source; // place in the user's program
  const Operator* op = nullptr;
};

struct Method {
  std::string name, schema;
  std::vector<Parameter> parameters; // in the first registers
  uint32_t registers;
  size_t most_operands;           // of an instruction
  std::vector<uint32_t> operands; // registers, and behind them constants
  std::vector<Instruction> instructions;
};

struct Attribute {
  std::string name;
  size_t value; // the constant that it has at first
};

// Operands that follow each other in a group's call.
struct Arity {
  size_t inputs, outputs;
};

struct Program {
  std::unique_ptr<Arena> arena; // memory of the constants
  std::vector<Value> constants;
  std::vector<std::string> sources;
  std::vector<Attribute> attributes;
  std::vector<Method> methods;
};

// Check that instructions use only registers, constants, attributes and groups that exist, and that
// jumps lead to instructions. Throw BadBytes otherwise.
void verify(const Program& program, const Method& method, std::span<const Arity> groups);

} // namespace torchmdla::native
