#include "program.h"

#include "base/byte_reader.h"

#include <algorithm>

namespace torchmdla::native {

namespace {

void check(bool holds, const char* reason) {
  if (!holds) throw BadBytes(reason);
}

constexpr uint32_t any_number = ~uint32_t{0};

// Numbers of outputs and inputs that an instruction must have.
struct Form {
  uint32_t outputs, inputs;
};

constexpr Form forms[] = {
    {any_number, any_number}, // call
    {any_number, any_number}, // group
    {any_number, any_number}, // move
    {any_number, 0},          // release
    {0, 0},                   // jump
    {0, 1},                   // branch
    {0, 3},                   // loop
    {1, 0},                   // increment
    {1, 0},                   // get
    {0, 1},                   // set
    {0, 1},                   // finish
};
static_assert(std::size(forms) == static_cast<size_t>(Opcode::count));

void verify_detail(const Program& program, const Method& method, const Instruction& instruction,
                   std::span<const Arity> groups) {
  const auto detail = instruction.detail;
  switch (instruction.code) {
  case Opcode::call: {
    const auto& op = *instruction.op;
    check(instruction.inputs >= op.least && instruction.inputs <= op.most,
          "an operator has too many inputs, or too few");
    check(op.outputs == Operator::any || instruction.outputs == op.outputs,
          "an operator has too many outputs, or too few");
    break;
  }
  case Opcode::group:
    check(detail < groups.size() && instruction.inputs == groups[detail].inputs &&
              instruction.outputs == groups[detail].outputs,
          "a method calls a group that does not exist");
    break;
  case Opcode::move:
    check(instruction.outputs == instruction.inputs, "a method moves values to nowhere");
    break;
  case Opcode::jump:
  case Opcode::branch:
  case Opcode::loop:
    check(detail < method.instructions.size(), "a method jumps out of its instructions");
    break;
  case Opcode::get:
  case Opcode::set:
    check(detail < program.attributes.size(), "a method uses an attribute that does not exist");
    break;
  default:
    break;
  }
}

} // namespace

void verify(const Program& program, const Method& method, std::span<const Arity> groups) {
  check(method.parameters.size() <= method.registers,
        "a method has more parameters than registers");
  for (const auto& parameter : method.parameters)
    check(!parameter.fallback || *parameter.fallback < program.constants.size(),
          "a parameter has an unknown default");
  for (const auto& instruction : method.instructions) {
    const auto& form = forms[static_cast<size_t>(instruction.code)];
    check((form.outputs == any_number || form.outputs == instruction.outputs) &&
              (form.inputs == any_number || form.inputs == instruction.inputs),
          "an instruction has too many operands, or too few");
    check(instruction.source < program.sources.size(), "an instruction has an unknown source");
    const auto operands = std::span(method.operands)
                              .subspan(instruction.first, instruction.outputs + instruction.inputs);
    for (size_t i = 0; i < operands.size(); ++i) {
      const size_t limit = i < instruction.outputs ? 0 : program.constants.size();
      check(operands[i] < method.registers + limit, "an instruction uses an unknown register");
    }
    verify_detail(program, method, instruction, groups);
  }
  check(!method.instructions.empty() && (method.instructions.back().code == Opcode::finish ||
                                         method.instructions.back().code == Opcode::jump),
        "a method does not end");
}

bool Type::accepts(Value& value) const {
  const auto of_kind = [&](native::Kind kind) { return value.kind() == kind; };
  switch (kind) {
  case Kind::any:
    return true;
  case Kind::none:
    return value.is_none();
  case Kind::boolean:
    return of_kind(native::Kind::boolean);
  case Kind::integer:
    return of_kind(native::Kind::integer);
  case Kind::real:
    if (of_kind(native::Kind::integer)) value = Value(static_cast<double>(value.integer()));
    return of_kind(native::Kind::real);
  case Kind::number:
    return value.is_number() || of_kind(native::Kind::boolean);
  case Kind::string:
    return of_kind(native::Kind::string);
  case Kind::tensor:
    return value.is_tensor();
  case Kind::list: {
    if (!of_kind(native::Kind::list)) return false;
    auto& list = value.list();
    return std::all_of(list.items, list.items + list.size,
                       [&](Value& item) { return arguments[0].accepts(item); });
  }
  case Kind::dict: {
    if (!of_kind(native::Kind::dict)) return false;
    auto& dict = value.dict();
    for (size_t i = 0; i < dict.size; ++i)
      if (!arguments[i % 2].accepts(dict.items[i])) return false;
    return true;
  }
  case Kind::tuple: {
    if (!of_kind(native::Kind::tuple)) return false;
    auto& tuple = value.tuple();
    if (tuple.size != arguments.size()) return false;
    for (size_t i = 0; i < tuple.size; ++i)
      if (!arguments[i].accepts(tuple.items()[i])) return false;
    return true;
  }
  case Kind::alternatives:
    return std::ranges::any_of(arguments, [&](const Type& type) { return type.accepts(value); });
  }
  return false;
}

} // namespace torchmdla::native
