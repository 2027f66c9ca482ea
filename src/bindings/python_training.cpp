#include "python_training.h"

#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>

#include <string>
#include <utility>

namespace py = pybind11;

namespace torchmdla {

using torch::autograd::variable_list;

namespace {

// Call a function of a list of tensors, which it empties. It returns tensors and Nones.
variable_list call(const std::shared_ptr<PyObject>& function, variable_list tensors) {
  const py::gil_scoped_acquire gil;
  try {
    py::list arguments(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i)
      PyList_SET_ITEM(arguments.ptr(), static_cast<Py_ssize_t>(i),
                      THPVariable_Wrap(std::move(tensors[i])));
    tensors.clear();
    const py::sequence results = borrow_reference(function)(arguments);
    variable_list values;
    for (const auto& result : results)
      values.push_back(result.is_none() ? at::Tensor() : THPVariable_Unpack(result.ptr()));
    return values;
  } catch (py::error_already_set& error) {
    error.restore();
    throw PassingError();
  }
}

} // namespace

PythonTrainingProgram::PythonTrainingProgram(const py::object& program)
    : forward_(own_reference(program.attr("forward"))),
      backward_(own_reference(program.attr("backward"))) {
  for (const auto& output : program.attr("outputs"))
    outputs.push_back(output.is_none() ? std::nullopt : std::optional(to_ivalue(output)));
  written = program.attr("written").cast<std::vector<size_t>>();
  for (const auto& [origin, index] :
       program.attr("saved").cast<std::vector<std::pair<std::string, size_t>>>())
    saved.push_back({origin == "input", index});
  using Layouts = std::vector<std::pair<std::vector<int64_t>, std::vector<int64_t>>>;
  for (const auto& [sizes, strides] : program.attr("gradients").cast<Layouts>())
    gradients.push_back({sizes, strides});
  is_random = program.attr("is_random").cast<bool>();
}

variable_list PythonTrainingProgram::forward(variable_list inputs) const {
  return call(forward_, std::move(inputs));
}

variable_list PythonTrainingProgram::backward(variable_list values) const {
  return call(backward_, std::move(values));
}

} // namespace torchmdla
