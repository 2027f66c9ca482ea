#include "machine.h"

#include "base/byte_reader.h"

#include <algorithm>
#include <memory>

namespace torchmdla::native {

namespace {

// Registers of a call, in memory of an arena.
class Registers {
public:
  Registers(Arena& arena, size_t count)
      : arena_(arena), count_(count),
        values_(static_cast<Value*>(arena.allocate(count * sizeof(Value)))) {
    std::uninitialized_default_construct_n(values_, count);
  }
  Registers(const Registers&) = delete;
  Registers& operator=(const Registers&) = delete;
  ~Registers() {
    std::destroy_n(values_, count_);
    arena_.release(values_, count_ * sizeof(Value));
  }

  Value* begin() const { return values_; }

private:
  Arena& arena_;
  const size_t count_;
  Value* const values_;
};

class Machine {
public:
  Machine(const Loaded& loaded, const Method& method, std::span<Value> attributes, Arena& arena)
      : loaded_(loaded), method_(method), attributes_(attributes), arena_(arena),
        registers_(arena, method.registers), operands_(arena, method.most_operands) {}

  Value run(std::span<Value> arguments) {
    std::ranges::move(arguments, registers_.begin());
    size_t next = 0;
    while (true) {
      const auto& instruction = method_.instructions[next++];
      const auto* const operands = method_.operands.data() + instruction.first;
      switch (instruction.code) {
      case Opcode::call:
      case Opcode::group:
        call(instruction, operands);
        break;
      case Opcode::move:
        for (uint32_t i = 0; i < instruction.outputs; ++i)
          output(operands[i]) = input(operands[instruction.outputs + i]);
        break;
      case Opcode::release:
        for (uint32_t i = 0; i < instruction.outputs; ++i)
          output(operands[i]) = Value();
        break;
      case Opcode::jump:
        next = instruction.detail;
        break;
      case Opcode::branch:
        if (!input(operands[0]).boolean()) next = instruction.detail;
        break;
      case Opcode::loop:
        if (input(operands[0]).integer() >= input(operands[1]).integer() ||
            !input(operands[2]).boolean())
          next = instruction.detail;
        break;
      case Opcode::increment:
        output(operands[0]) = Value(output(operands[0]).integer() + 1);
        break;
      case Opcode::get:
        output(operands[0]) = attributes_[instruction.detail];
        break;
      case Opcode::set:
        attributes_[instruction.detail] = input(operands[0]);
        break;
      default:
        return input(operands[0]);
      }
    }
  }

private:
  // Pointers to the operands of one instruction.
  class Operands {
  public:
    Operands(Arena& arena, size_t count)
        : arena_(arena), bytes_(count * sizeof(void*)),
          pointers_(static_cast<const Value**>(arena.allocate(bytes_))) {}
    Operands(const Operands&) = delete;
    Operands& operator=(const Operands&) = delete;
    ~Operands() { arena_.release(pointers_, bytes_); }

    const Value** inputs() const { return pointers_; }

  private:
    Arena& arena_;
    const size_t bytes_;
    const Value** const pointers_;
  };

  Value& output(uint32_t place) { return registers_.begin()[place]; }
  const Value& input(uint32_t place) const {
    return place < method_.registers ? registers_.begin()[place]
                                     : loaded_.program.constants[place - method_.registers];
  }

  // Run an operator or a group.
  void call(const Instruction& instruction, const uint32_t* operands) {
    const auto** const inputs = operands_.inputs();
    auto** const outputs = const_cast<Value**>(inputs + instruction.inputs);
    for (uint32_t i = 0; i < instruction.outputs; ++i)
      outputs[i] = &output(operands[i]);
    for (uint32_t i = 0; i < instruction.inputs; ++i)
      inputs[i] = &input(operands[instruction.outputs + i]);
    const std::span<const Value* const> given(inputs, instruction.inputs);
    const std::span<Value* const> results(outputs, instruction.outputs);
    try {
      if (instruction.op) {
        instruction.op->run(OperatorCall(arena_, given, results));
        return;
      }
      const auto& group = loaded_.groups[instruction.detail];
      group.run(group.choose(given), given, results, loaded_.program.constants, arena_);
    } catch (const Raised&) {
      throw;
    } catch (const Error& error) {
      const auto& source = loaded_.program.sources[instruction.source];
      if (source.empty() || error.status != TMDLA_FAILED) throw;
      throw Error(error.status, std::string(error.what()) + " (" + source + ")");
    }
  }

  const Loaded& loaded_;
  const Method& method_;
  const std::span<Value> attributes_;
  Arena& arena_;
  const Registers registers_;
  const Operands operands_;
};

} // namespace

Value run_method(const Loaded& loaded, const Method& method, std::span<Value> arguments,
                 std::span<Value> attributes, Arena& arena) {
  if (arguments.size() != method.parameters.size())
    throw Error(TMDLA_INTERNAL, "a method is called with another number of arguments");
  return Machine(loaded, method, attributes, arena).run(arguments);
}

} // namespace torchmdla::native
