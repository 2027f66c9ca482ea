// Python objects that C++ owns, values on their way to and from Python, and Python's exceptions on
// their way through C++.
#pragma once

#include <ATen/core/ivalue.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

#include <memory>

namespace torchmdla {

// Lets go of the object from any thread, and not at all once the interpreter is gone. The GIL must
// be held.
std::shared_ptr<PyObject> hold(const pybind11::object& object);

inline pybind11::object borrow(const std::shared_ptr<PyObject>& held) {
  return pybind11::reinterpret_borrow<pybind11::object>(held.get());
}

// Numbers, strings, None and lists of numbers. (PyTorch's own conversion is not exported.) Throws
// TypeError for others.
c10::IValue to_ivalue(const pybind11::handle& value);

// A Python exception on its way through the TorchScript interpreter, which would otherwise turn it
// into a RuntimeError with the text alone.
class PassingError : public python_error {
public:
  PassingError();
  PassingError(const PassingError&) = delete;
  PassingError& operator=(const PassingError&) = delete;
  ~PassingError() override;
};

} // namespace torchmdla
