// Failures with the status that the C interface returns for them.
#pragma once

#include "torchmdla/runtime.h"

#include <stdexcept>
#include <string>

namespace torchmdla::native {

struct Error : std::runtime_error {
  Error(tmdla_status status, const std::string& text) : std::runtime_error(text), status(status) {}
  const tmdla_status status;
};

} // namespace torchmdla::native
