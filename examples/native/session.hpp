// A session as a C++ object: calls of a program's methods, with state between them.
#pragma once

#include "model.hpp"

#include <string>

// The exception of a program.
struct Raised : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// One thread at a time uses a session; any number of sessions share a program.
class Session {
public:
  explicit Session(const tmdla_model* program) : program_(program) {
    tmdla_session* created = nullptr;
    check(tmdla_session_create(program, &created));
    session_.reset(created);
  }

  size_t method(const char* name) const {
    size_t number = 0;
    check(tmdla_find_method(program_, name, &number));
    return number;
  }

  // The result is valid until the next call.
  const tmdla_value& call(size_t method, std::span<const tmdla_value> arguments) {
    const tmdla_value* result = nullptr;
    const auto status = tmdla_call(session_.get(), method, arguments.data(), arguments.size(), &result);
    if (status == TMDLA_RAISED)
      throw Raised(std::string(tmdla_last_exception()) + ": " + tmdla_last_error());
    check(status);
    return *result;
  }

private:
  struct Free {
    void operator()(tmdla_session* session) const { tmdla_session_free(session); }
  };
  const tmdla_model* program_;
  std::unique_ptr<tmdla_session, Free> session_;
};

inline tmdla_value value_of(int64_t number) {
  tmdla_value value{};
  value.kind = TMDLA_INTEGER;
  value.as.integer = number;
  return value;
}

inline tmdla_value value_of(const tmdla_tensor& tensor) {
  tmdla_value value{};
  value.kind = TMDLA_TENSOR;
  value.as.tensor = &tensor;
  return value;
}
