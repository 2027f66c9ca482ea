// Failures of the device's library, until the C functions of binding.h report them.
#pragma once

#include <exception>
#include <stdexcept>
#include <string>

namespace torchmdla::mdla {

// Failure of the library. The text begins with the name of the library's function.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Return the text that mdla_fault() returns in this thread.
std::string& current_fault();

// Return the result of `call`. If it throws, set the current fault and return `failed`.
template <class Call, class Failed>
auto catch_errors(Call call, Failed failed) -> decltype(call()) {
  current_fault().clear();
  try {
    return call();
  } catch (const std::exception& error) {
    current_fault() = error.what();
    return failed;
  }
}

} // namespace torchmdla::mdla
