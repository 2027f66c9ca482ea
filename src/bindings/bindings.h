// Functions that add the extension's Python bindings, by topic.
#pragma once

#include <pybind11/pybind11.h>

namespace torchmdla {

void bind_executable(pybind11::module& module);
void bind_split_program(pybind11::module& module);
void bind_image(pybind11::module& module);
void bind_devices(pybind11::module& module);
void bind_compiler(pybind11::module& module);
void bind_reports(pybind11::module& module);
void bind_settings(pybind11::module& module);
void bind_lazy(pybind11::module& module);

namespace acap {
void bind(pybind11::module& module);
} // namespace acap

} // namespace torchmdla
