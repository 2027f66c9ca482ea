// Python objects that C++ owns, conversion of values, and Python exceptions that pass through C++.
#pragma once

#include <ATen/core/ivalue.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

#include <memory>

namespace torchmdla {

// Return a reference to the object, which any thread may release. The object is not released after
// the interpreter has ended. The GIL must be held.
std::shared_ptr<PyObject> own_reference(const pybind11::object& object);

inline pybind11::object borrow_reference(const std::shared_ptr<PyObject>& reference) {
  return pybind11::reinterpret_borrow<pybind11::object>(reference.get());
}

// Convert numbers, strings, devices, None and lists of numbers. (PyTorch's own conversion is not
// exported.) Throw TypeError for other types.
c10::IValue to_ivalue(const pybind11::handle& value);

// A Python exception that passes through the TorchScript interpreter, which would otherwise turn it
// into a RuntimeError with only the text.
class PassingError : public python_error {
public:
  PassingError();
  PassingError(const PassingError&) = delete;
  PassingError& operator=(const PassingError&) = delete;
  ~PassingError() override;
};

} // namespace torchmdla
