// The acap device in Python: `torchmdla._C.acap`.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torchmdla::acap {

void bind(pybind11::module& module);

} // namespace torchmdla::acap
