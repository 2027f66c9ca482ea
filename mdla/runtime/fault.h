// Failures of the device's library on their way to the C functions of binding.h.
#pragma once

#include <exception>
#include <stdexcept>
#include <string>

namespace torchmdla::mdla {

// The text begins with the name of the library's function.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What mdla_fault() returns on this thread.
std::string& current_fault();

// The result of `call`, or `failed` with the fault noted.
template <class Call, class Failed> auto guarded(Call call, Failed failed) -> decltype(call()) {
  current_fault().clear();
  try {
    return call();
  } catch (const std::exception& error) {
    current_fault() = error.what();
    return failed;
  }
}

} // namespace torchmdla::mdla
