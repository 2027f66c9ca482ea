// Operators that methods call outside of groups: those of the language, and views, copies and new
// tensors. Everything that computes with tensors is in groups.
#pragma once

#include "native/error.h"
#include "native/value.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace torchmdla::native {

// One call of an operator.
class OperatorCall {
public:
  OperatorCall(Arena& arena, std::span<const Value* const> inputs, std::span<Value* const> outputs)
      : arena(arena), inputs_(inputs), outputs_(outputs) {}

  Arena& arena;

  size_t count() const { return inputs_.size(); }
  const Value& operator[](size_t place) const { return *inputs_[place]; }
  std::span<const Value* const> inputs() const { return inputs_; }
  size_t outputs() const { return outputs_.size(); }
  void set(Value value, size_t place = 0) const { *outputs_[place] = std::move(value); }

  // An integer, or `otherwise` for None or for an argument that is missing.
  int64_t integer(size_t place, int64_t otherwise) const {
    return place < count() && !(*this)[place].is_none() ? (*this)[place].integer() : otherwise;
  }

private:
  std::span<const Value* const> inputs_;
  std::span<Value* const> outputs_;
};

struct Operator {
  static constexpr size_t any = ~size_t{0};

  std::string name;   // with the overload
  size_t least, most; // inputs
  size_t outputs;
  void (*run)(const OperatorCall& call);
};

// Exception that the program raises, or that the language raises for it.
struct Raised : Error {
  Raised(std::string exception, const std::string& text)
      : Error(TMDLA_RAISED, text), exception(std::move(exception)) {}
  const std::string exception; // qualified name of its class
};

// Throw the error that the program fails with.
[[noreturn]] void fail(const std::string& text);

// Return the operator of this name, or null.
const Operator* find_operator(std::string_view name);

// The operators of each file.
std::span<const Operator> number_operators();
std::span<const Operator> text_operators();
std::span<const Operator> container_operators();
std::span<const Operator> view_operators();
std::span<const Operator> tensor_operators();

} // namespace torchmdla::native
