// What an exception says, for people.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace torchmdla {

// Without the stack of C++ calls that PyTorch's own come with.
inline std::string text_of(const std::exception& error) {
  const auto* own = dynamic_cast<const c10::Error*>(&error);
  return own ? own->what_without_backtrace() : error.what();
}

} // namespace torchmdla
