// Python bindings of the lazy device: functions `lazy_…` and the class `LazyComputation`.

#include "bindings.h"
#include "lazy/custom_ops.h"
#include "lazy/device_backend.h"
#include "python/python_objects.h"

#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/jit/python/pybind.h>
#include <torch/csrc/jit/python/pybind_utils.h>

namespace py = pybind11;

namespace torchmdla {

namespace {

using lazy::Computation;

// Call Python from a thread that may not hold the GIL. A Python exception is converted to a C++
// exception, because it may be destroyed on a thread other than Python's.
template <class Call> auto with_gil(Call call) {
  py::gil_scoped_acquire gil;
  try {
    return call();
  } catch (py::error_already_set& error) {
    throw std::runtime_error(error.what());
  }
}

// A callable that `compile` of a Python backend returned. It maps tensors to a sequence of tensors.
class PythonProgram : public LazyProgram {
public:
  explicit PythonProgram(const py::object& function) : function_(own_reference(function)) {}

  std::vector<c10::IValue> run(std::vector<c10::IValue> inputs) override {
    return with_gil([&] {
      py::tuple arguments(inputs.size());
      for (size_t i = 0; i < inputs.size(); ++i)
        arguments[i] = torch::jit::toPyObject(std::move(inputs[i]));
      std::vector<c10::IValue> outputs;
      for (const auto& output : borrow_reference(function_)(*arguments))
        outputs.emplace_back(output.cast<at::Tensor>());
      return outputs;
    });
  }

private:
  const std::shared_ptr<PyObject> function_;
};

// A Python object with a method `compile(graph)` that returns a callable or None.
class PythonBackend : public LazyBackend {
public:
  explicit PythonBackend(const py::object& backend) : backend_(own_reference(backend)) {}

  std::shared_ptr<LazyProgram> compile(const std::shared_ptr<torch::jit::Graph>& graph) override {
    return with_gil([&]() -> std::shared_ptr<LazyProgram> {
      const py::object program = borrow_reference(backend_).attr("compile")(graph);
      return program.is_none() ? nullptr : std::make_shared<PythonProgram>(program);
    });
  }

private:
  const std::shared_ptr<PyObject> backend_;
};

std::shared_ptr<LazyBackend> to_backend(const py::object& object) {
  if (object.is_none()) return nullptr;
  if (!PyCapsule_CheckExact(object.ptr())) return std::make_shared<PythonBackend>(object);
  auto* pointer = PyCapsule_GetPointer(object.ptr(), lazy_backend_capsule);
  if (!pointer) throw py::error_already_set();
  return *static_cast<std::shared_ptr<LazyBackend>*>(pointer);
}

// Set the backend without holding the GIL: PyTorch destroys computations, which may own Python
// programs, under its own lock.
void set_backend(const py::object& object) {
  auto backend = to_backend(object);
  const py::gil_scoped_release no_gil;
  lazy::set_backend(std::move(backend));
}

void set_text_writer(const py::object& writer) {
  const auto callable = own_reference(writer);
  lazy::set_text_writer([callable](std::shared_ptr<const Computation> computation) {
    return with_gil([&] {
      return borrow_reference(callable)(std::const_pointer_cast<Computation>(computation))
          .cast<std::string>();
    });
  });
}

std::vector<std::pair<size_t, size_t>> aliases(const Computation& computation) {
  std::vector<std::pair<size_t, size_t>> pairs;
  for (const auto& alias : computation.aliases())
    pairs.emplace_back(alias.output, alias.parameter);
  return pairs;
}

} // namespace

void bind_lazy(py::module& module) {
  py::class_<Computation, std::shared_ptr<Computation>>(module, "LazyComputation",
                                                        "What lazy tensors were lowered to.")
      .def_property_readonly("graph", &Computation::graph)
      .def_property_readonly("aliases", &aliases)
      .def_property_readonly("in_mark_step",
                             [](const Computation& self) { return self.in_mark_step; });
  const auto without_gil = py::call_guard<py::gil_scoped_release>();
  module.def("lazy_initialise", &lazy::initialise, py::arg("device"), without_gil);
  module.def("lazy_register_foreign_operators", &lazy::register_foreign_operators, without_gil);
  module.def("lazy_set_backend", &set_backend, py::arg("backend"));
  module.def("lazy_set_text_writer", &set_text_writer, py::arg("writer"));
  module.def("lazy_set_verbose", &lazy::set_verbose, py::arg("on"));
  module.def("lazy_latest_computation",
             [] { return std::const_pointer_cast<Computation>(lazy::latest_computation()); });
  module.def(
      "lazy_pending_computation",
      [](const std::vector<at::Tensor>& tensors) {
        return std::const_pointer_cast<Computation>(lazy::pending_computation(tensors));
      },
      py::arg("tensors"), without_gil);
  module.def("lazy_statistics", [] {
    const auto counts = lazy::counts();
    return std::map<std::string, int64_t>{{"graphs", counts.graphs}, {"runs", counts.runs}};
  });
  module.def("lazy_reset_statistics", &lazy::reset_counts);
}

} // namespace torchmdla
