// State of a caller of a model: attributes that methods write, and memory.
#pragma once

#include "model.h"
#include "value.h"

#include "torchmdla/runtime.h"

#include <cstddef>
#include <span>
#include <vector>

namespace torchmdla::native {

// Values in the form of torchmdla/runtime.h, with the objects that they refer to.
class Results {
public:
  explicit Results(Arena& arena) : arena_(arena) {}
  Results(const Results&) = delete;
  Results& operator=(const Results&) = delete;

  // Convert the value and keep it until the next call of `clear`.
  const tmdla_value* hold(Value value);
  void clear();

private:
  tmdla_value convert(const Value& value);

  Arena& arena_;
  Value value_;
  void* memory_ = nullptr;
  size_t bytes_ = 0;
  tmdla_value* next_value_ = nullptr;
  tmdla_tensor* next_tensor_ = nullptr;
};

// One thread at a time may use a session.
class Session {
public:
  explicit Session(const Model& model);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  void reset();
  const tmdla_value* call(size_t method, std::span<const tmdla_value> arguments);
  const tmdla_value* attribute(size_t index);
  void set_attribute(size_t index, const tmdla_value& value);
  size_t memory() const { return arena_.bytes(); }

private:
  // Tensors in the caller's memory, during a call.
  class Borrowed;

  const Model& model_;
  Arena arena_; // destroyed last
  std::vector<Value> attributes_;
  std::vector<Value> arguments_;
  std::vector<Value> borrowed_;
  Results results_;
};

} // namespace torchmdla::native
