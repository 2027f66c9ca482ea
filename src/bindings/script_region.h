// Parts of programs of TorchScript that Python runs: `torchmdla._C.ScriptRegion`.
#pragma once

#include <pybind11/pybind11.h>

namespace torchmdla {

// Add the type to the module.
void bind_script_region(pybind11::module& module);

} // namespace torchmdla
