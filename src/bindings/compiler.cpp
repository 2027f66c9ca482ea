// Functions that the run-time library calls in Python: compilation of a group, warnings about
// failures, and background threads.

#include "bindings.h"
#include "group/compilation_group.h"
#include "python/python_objects.h"
#include "python_group.h"
#include "python_training.h"

#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/jit/python/pybind.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <tuple>
#include <vector>

namespace py = pybind11;

namespace torchmdla {

namespace {

py::object to_python(const TensorMeta& meta, const py::object& make_meta) {
  py::object dtype = py::reinterpret_borrow<py::object>(
      reinterpret_cast<PyObject*>(torch::getTHPDtype(meta.dtype)));
  py::object quantisation = py::none();
  if (const auto& qparams = meta.quantisation)
    quantisation = py::make_tuple(qparams->scale, qparams->zero_point);
  return make_meta(dtype, py::tuple(py::cast(meta.sizes)), py::tuple(py::cast(meta.strides)),
                   quantisation, meta.bits);
}

py::dict to_python(const Record& record, const py::object& make_meta) {
  py::dict result;
  for (const auto& [name, seen] : record) {
    if (const auto* meta = std::get_if<TensorMeta>(&seen)) {
      result[py::str(name)] = to_python(*meta, make_meta);
    } else if (const auto* metas = std::get_if<TensorMetas>(&seen)) {
      py::list list;
      for (const auto& meta : *metas)
        list.append(meta ? to_python(*meta, make_meta) : py::none());
      result[py::str(name)] = list;
    } else {
      result[py::str(name)] = torch::jit::toPyObject(std::get<c10::IValue>(seen));
    }
  }
  return result;
}

// Convert symbol places to a list of symbol numbers or None.
py::list to_python(const SymbolPlaces& places) {
  py::list result;
  for (const auto place : places)
    result.append(place == fixed ? py::object(py::none()) : py::object(py::int_(place)));
  return result;
}

py::tuple to_python(const Symbols& values) {
  py::tuple result(values.size());
  for (size_t i = 0; i < values.size(); ++i)
    result[i] = values[i];
  return result;
}

// Call Python from a thread without the GIL. Exceptions are passed on to the user.
template <class Call> auto in_python(Call call) {
  py::gil_scoped_acquire gil;
  try {
    return call();
  } catch (py::error_already_set& error) {
    error.restore();
    throw PassingError();
  }
}

// Conversion of a CompileError to a CompileFailure.
struct OnFailure {
  std::shared_ptr<PyObject> error_type, warn;

  [[noreturn]] void operator()(const py::error_already_set& error) const {
    const auto exception = own_reference(error.value());
    CompileFailure failure(py::str(error.value().attr("reason")));
    failure.raise = [exception] {
      py::gil_scoped_acquire gil;
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.get())), exception.get());
      throw PassingError();
    };
    failure.warn = [exception, warn = warn](bool divided) {
      in_python([&] { borrow_reference(warn)(borrow_reference(exception), divided); });
    };
    failure.may_succeed_at_other_sizes = error.value().attr("elsewhere").cast<bool>();
    failure.excluded_nodes = error.value().attr("nodes").cast<std::vector<size_t>>();
    failure.unroll_limit_exceeded =
        error.value().attr("unroll_limit_exceeded").cast<std::optional<int64_t>>();
    if (const auto pause = error.value().attr("retry_after").cast<std::optional<double>>())
      failure.retry_after = std::chrono::duration_cast<std::chrono::steady_clock::duration>(
          std::chrono::duration<double>(*pause));
    throw failure;
  }
};

// Call Python. A CompileError is converted to a CompileFailure; any other exception is passed on to
// the user.
template <class Call> auto in_python(const OnFailure& on_failure, Call call) {
  return in_python([&] {
    try {
      return call();
    } catch (const py::error_already_set& error) {
      if (error.matches(borrow_reference(on_failure.error_type))) on_failure(error);
      throw;
    }
  });
}

// Convert a torchmdla.capture.symbolic.size_program.SizeNodes.
SizeProgram size_program(const py::object& fields) {
  using Entry = std::tuple<std::string, SizeProgram::Number, size_t, size_t>;
  auto [entries, computed, conditions] =
      fields.cast<std::tuple<std::vector<Entry>, std::vector<size_t>, std::vector<size_t>>>();
  std::vector<SizeProgram::Node> nodes;
  for (const auto& [operation, number, left, right] : entries)
    nodes.push_back({SizeProgram::operation(operation).value(), number, left, right});
  return {std::move(nodes), std::move(computed), std::move(conditions)};
}

// A choice, the seconds of compiled code and of operators, and the nodes left out.
using FindingFields = std::tuple<std::string, double, double, std::vector<size_t>>;

std::optional<SpeedFinding> to_finding(const py::object& fields) {
  if (fields.is_none()) return std::nullopt;
  auto [choice, compiled, eager, excluded] = fields.cast<FindingFields>();
  const auto place = std::ranges::find(speed_choices, choice) - speed_choices.begin();
  return SpeedFinding{{compiled, eager}, static_cast<SpeedChoice>(place), std::move(excluded)};
}

FindingFields to_fields(const SpeedFinding& finding) {
  return {speed_choices[static_cast<size_t>(finding.choice)], finding.seconds.compiled,
          finding.seconds.eager, finding.excluded_nodes};
}

py::object executable_of(const SpeedRequest& request) {
  return py::cast(std::const_pointer_cast<Executable>(request.executable));
}

// Set the compiler's functions in Python. `compile(subgraph, record, parameters, device,
// bf16_products)` returns an Executable. `compile_dynamic(…, places, values, written_out)` returns
// an Executable for any sizes and the size program that a call evaluates for it.
// `compile_training(subgraph, inputs, parameters, device, used, strides)` returns a
// torchmdla.capture.training.TrainingProgram. All raise
// `error_type`; its `nodes` are the nodes of the subgraph that caused the error. `warn(error,
// divided)` reports it to the user. `make_meta(dtype, shape, strides, …)` makes the entries of the
// record. `tell_fault(group, fault, strict)` warns about a device's fault, or raises an error.
// `store_speed(executable, device, threads, magnitude, group, fields)` stores a comparison with
// PyTorch's operators. `find_speed(executable, device, threads, magnitude)` returns the fields, or
// None.
void set_compiler_functions(const py::object& compile, const py::object& compile_dynamic,
                            const py::object& compile_training, const py::object& warn,
                            const py::object& make_meta, const py::object& error_type,
                            const py::object& tell_fault, const py::object& find_speed,
                            const py::object& store_speed) {
  const auto function = own_reference(compile), dynamic_function = own_reference(compile_dynamic),
             training_function = own_reference(compile_training), meta = own_reference(make_meta),
             report = own_reference(tell_fault), find = own_reference(find_speed),
             store = own_reference(store_speed);
  const OnFailure failure{own_reference(error_type), own_reference(warn)};
  Compiler compiler;
  compiler.compile = [=](const CompileRequest& request) {
    return in_python(failure, [&]() -> std::shared_ptr<const Executable> {
      return borrow_reference(function)(to_python(request.subgraph),
                                        to_python(request.record, borrow_reference(meta)),
                                        request.parameters, request.device, request.bf16_products)
          .cast<std::shared_ptr<Executable>>();
    });
  };
  compiler.compile_dynamic = [=](const DynamicRequest& request) {
    return in_python(failure, [&]() -> DynamicExecutable {
      const auto& [subgraph, record, parameters, device, products] = request.typical;
      const py::tuple result = borrow_reference(dynamic_function)(
          to_python(subgraph), to_python(record, borrow_reference(meta)), parameters, device,
          products, to_python(request.places), to_python(request.values), request.written_out);
      return {result[0].cast<std::shared_ptr<Executable>>(), size_program(result[1])};
    });
  };
  compiler.report_fault = [=](const std::string& group, const std::string& fault, bool strict) {
    in_python([&] { borrow_reference(report)(group, fault, strict); });
  };
  compiler.find_speed = [=](const SpeedRequest& request) {
    return in_python([&] {
      return to_finding(borrow_reference(find)(executable_of(request), request.device,
                                               request.key.threads, request.key.magnitude));
    });
  };
  compiler.store_speed = [=](const SpeedRequest& request, const SpeedFinding& finding) {
    in_python([&] {
      borrow_reference(store)(executable_of(request), request.device, request.key.threads,
                              request.key.magnitude, request.group, to_fields(finding));
    });
  };
  set_compiler(std::move(compiler));
  set_training_compiler([=](const TrainingRequest& request) {
    return in_python(failure, [&]() -> std::shared_ptr<const TrainingProgram> {
      py::list used, strides;
      for (size_t i = 0; i < request.strides.size(); ++i)
        used.append(i < request.used.size() && request.used[i]);
      for (const auto& of_output : request.strides)
        strides.append(of_output);
      return std::make_shared<PythonTrainingProgram>(borrow_reference(training_function)(
          to_python(request.subgraph), torchmdla::to_python(request.inputs), request.parameters,
          request.device, used, strides));
    });
  });
}

// Set `submit(task)`, which runs a callable without arguments on another thread, later.
void set_submit(const py::object& submit) {
  const auto callable = own_reference(submit);
  set_background([callable](std::function<void()> task) {
    py::gil_scoped_acquire gil;
    borrow_reference(callable)(py::cpp_function([task = std::move(task)] {
      py::gil_scoped_release without_gil;
      task();
    }));
  });
}

} // namespace

void bind_compiler(py::module& module) {
  module.def("set_compiler", &set_compiler_functions, py::arg("compile"),
             py::arg("compile_dynamic"), py::arg("compile_training"), py::arg("warn"),
             py::arg("make_meta"), py::arg("error_type"), py::arg("tell_fault"),
             py::arg("find_speed"), py::arg("store_speed"));
  module.def("set_submit", &set_submit, py::arg("submit"));
}

} // namespace torchmdla
