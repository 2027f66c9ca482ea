// Messages of exceptions, for humans.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace torchmdla {

// Return the message, without the stack of C++ calls that PyTorch's exceptions include.
inline std::string text_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error ? torch_error->what_without_backtrace() : error.what();
}

} // namespace torchmdla
