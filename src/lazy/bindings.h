// The lazy device's functions for Python.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torchmdla {

// Adds the functions `lazy_…` and the class `LazyComputation`.
void bind_lazy(pybind11::module& module);

} // namespace torchmdla
