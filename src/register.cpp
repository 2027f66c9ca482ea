// Registers the pass and the operator with PyTorch's JIT, and binds the extension to Python.

#include "compiler.h"
#include "device_table.h"
#include "fusion_pass.h"
#include "runtime.h"
#include "statistics.h"

#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/jit/passes/pass_manager.h>
#include <torch/csrc/jit/python/pybind.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/jit/runtime/custom_operator.h>
#include <torch/csrc/utils/pybind.h>

namespace py = pybind11;

namespace torchmdla {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Operation;
using torch::jit::Stack;

namespace {

// --- the JIT
// ---------------------------------------------------------------------------------------

void run_pass(std::shared_ptr<Graph>& graph) {
  if (const auto table = current_device_table())
    statistics().groups += static_cast<int64_t>(fuse_groups(graph, *table));
}

Operation make_operation(const Node* node) {
  auto group = std::make_shared<CompilationGroup>(node);
  return [group](Stack& stack) { group->run(stack); };
}

const torch::jit::RegisterOperators operators(
    {torch::jit::Operator(group_symbol(), make_operation, c10::AliasAnalysisKind::PURE_FUNCTION)});

const torch::jit::RegisterPass pass(run_pass);

// --- Python objects that C++ owns
// ------------------------------------------------------------------

// Lets go of a Python object from any thread, and not at all once the interpreter is gone.
void release(PyObject* object) {
  if (!Py_IsInitialized()) return;
  py::gil_scoped_acquire gil;
  Py_DECREF(object);
}

std::shared_ptr<PyObject> hold(const py::object& object) {
  return {py::object(object).release().ptr(), release};
}

// A Python exception on its way through the TorchScript interpreter, which would otherwise turn it
// into a RuntimeError with the text alone.
class PassingError : public python_error {
public:
  PassingError() {
    persist();
    FLAGS_torch_jit_enable_rethrow_caught_exception = true;
  }
  PassingError(const PassingError&) = delete;
  PassingError& operator=(const PassingError&) = delete;
  ~PassingError() override { FLAGS_torch_jit_enable_rethrow_caught_exception = false; }
};

// --- compilation
// -----------------------------------------------------------------------------------

py::object to_python(const TensorMeta& meta, const py::object& make_meta) {
  py::object dtype = py::reinterpret_borrow<py::object>(
      reinterpret_cast<PyObject*>(torch::getTHPDtype(meta.dtype)));
  return make_meta(dtype, py::tuple(py::cast(meta.sizes)), py::tuple(py::cast(meta.strides)));
}

py::dict to_python(const Record& record, const py::object& make_meta) {
  py::dict result;
  for (const auto& [name, seen] : record) {
    if (const auto* meta = std::get_if<TensorMeta>(&seen)) {
      result[py::str(name)] = to_python(*meta, make_meta);
    } else if (const auto* metas = std::get_if<std::vector<TensorMeta>>(&seen)) {
      py::list list;
      for (const auto& meta : *metas)
        list.append(to_python(meta, make_meta));
      result[py::str(name)] = list;
    } else {
      result[py::str(name)] = torch::jit::toPyObject(std::get<c10::IValue>(seen));
    }
  }
  return result;
}

[[noreturn]] void throw_failure(py::error_already_set& error) {
  const auto exception = hold(error.value());
  throw CompileFailure(py::str(error.value().attr("reason")), [exception] {
    py::gil_scoped_acquire gil;
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.get())), exception.get());
    throw PassingError();
  });
}

// `compile(graph, record, parameters, device)` returns an Executable or raises `error_type`;
// `make_meta(dtype, shape, strides)` makes the record's entries.
void set_compiler(const py::object& compile, const py::object& make_meta,
                  const py::object& error_type) {
  const auto held_compile = hold(compile), held_meta = hold(make_meta),
             held_type = hold(error_type);
  set_compile_function([=](const CompileRequest& request) {
    py::gil_scoped_acquire gil;
    try {
      const auto function = py::reinterpret_borrow<py::object>(held_compile.get());
      const auto meta = py::reinterpret_borrow<py::object>(held_meta.get());
      return function(request.graph, to_python(request.record, meta), request.parameters,
                      request.device)
          .cast<std::shared_ptr<Executable>>();
    } catch (py::error_already_set& error) {
      if (error.matches(py::reinterpret_borrow<py::object>(held_type.get()))) throw_failure(error);
      error.restore();
      throw PassingError();
    }
  });
}

// Numbers, strings, None and lists of numbers. (PyTorch's own conversion is not exported.)
c10::IValue to_ivalue(const py::handle& value) {
  if (value.is_none()) return {};
  if (py::isinstance<py::bool_>(value)) return value.cast<bool>();
  if (py::isinstance<py::int_>(value)) return value.cast<int64_t>();
  if (py::isinstance<py::float_>(value)) return value.cast<double>();
  if (py::isinstance<py::str>(value)) return value.cast<std::string>();
  TORCH_CHECK_TYPE(py::isinstance<py::list>(value), "torchmdla: no constant of a graph is a ",
                   std::string(py::str(py::type::of(value))));
  const auto list = py::reinterpret_borrow<py::list>(value);
  if (!list.empty() && py::isinstance<py::float_>(list[0])) return list.cast<std::vector<double>>();
  if (!list.empty() && py::isinstance<py::bool_>(list[0])) {
    c10::List<bool> flags;
    for (const auto& flag : list)
      flags.push_back(flag.cast<bool>());
    return flags;
  }
  return list.cast<std::vector<int64_t>>();
}

// `submit(task)` runs a callable without arguments on another thread, later.
void set_submit(const py::object& submit) {
  const auto held = hold(submit);
  set_background([held](std::function<void()> task) {
    py::gil_scoped_acquire gil;
    py::reinterpret_borrow<py::object>(held.get())(py::cpp_function(std::move(task)));
  });
}

InputBinding input_binding(const std::string& source, const py::object& from) {
  using Source = InputBinding::Source;
  if (source == "constant") return {Source::constant, 0, std::nullopt, from.cast<at::Tensor>()};
  static const std::unordered_map<std::string, Source> sources{
      {"dense", Source::dense}, {"contiguous", Source::contiguous}, {"scalar", Source::scalar}};
  const auto found = sources.find(source);
  TORCH_CHECK_VALUE(found != sources.end(),
                    "an argument comes from \"dense\", \"contiguous\", "
                    "\"scalar\" or \"constant\", not \"",
                    source, "\"");
  if (!py::isinstance<py::tuple>(from)) return {found->second, from.cast<size_t>(), {}, {}};
  const auto [input, element] = from.cast<std::pair<size_t, size_t>>();
  return {found->second, input, element, {}};
}

OutputBinding output_binding(const py::object& output) {
  if (!py::isinstance<py::tuple>(output)) return to_ivalue(output);
  const auto [result, dtype, sizes, strides] =
      output.cast<std::tuple<size_t, at::ScalarType, std::vector<int64_t>, std::vector<int64_t>>>();
  return OutputTensor{result, dtype, sizes, strides};
}

using PackEntry = std::tuple<uintptr_t, std::string, std::vector<size_t>, int64_t>;

std::shared_ptr<Executable>
make_executable(uintptr_t entry, const std::vector<PackEntry>& packs, int64_t workspace_bytes,
                const py::object& owner,
                const std::vector<std::pair<std::string, py::object>>& inputs,
                const std::vector<py::object>& outputs) {
  std::vector<InputBinding> input_bindings;
  for (const auto& [source, from] : inputs)
    input_bindings.push_back(input_binding(source, from));
  std::vector<OutputBinding> output_bindings;
  for (const auto& output : outputs)
    output_bindings.push_back(output_binding(output));
  CompiledCode code{reinterpret_cast<Entry>(entry), {}, workspace_bytes, hold(owner)};
  for (const auto& [function, recipe, arguments, bytes] : packs)
    code.packs.push_back({reinterpret_cast<Entry>(function), recipe, arguments, bytes});
  return std::make_shared<Executable>(std::move(code), std::move(input_bindings),
                                      std::move(output_bindings));
}

// --- settings
// --------------------------------------------------------------------------------------

const std::unordered_map<std::string, OpKind> op_kinds{{"compute", OpKind::compute},
                                                       {"cheap", OpKind::cheap},
                                                       {"view", OpKind::view},
                                                       {"shape", OpKind::shape},
                                                       {"item", OpKind::item}};

using OpEntry = std::tuple<std::string, std::string, std::string, py::dict>;

void set_device(const std::string& device, const std::vector<OpEntry>& ops,
                const std::vector<at::ScalarType>& dtypes) {
  auto table = std::make_shared<DeviceTable>();
  table->device = device;
  table->dtypes.insert(dtypes.begin(), dtypes.end());
  for (const auto& [name, overload, kind, where] : ops) {
    OpRule rule{op_kinds.at(kind), {}};
    for (const auto& [argument, value] : where)
      rule.where.emplace_back(argument.cast<std::string>(), to_ivalue(value));
    table->ops.emplace(c10::OperatorName(name, overload), std::move(rule));
  }
  set_device_table(std::move(table));
}

py::dict statistics_dict() {
  py::dict result;
  result["groups"] = statistics().groups.load();
  result["specialisations"] = statistics().specialisations.load();
  result["fallbacks"] = statistics().fallbacks();
  return result;
}

} // namespace

PYBIND11_MODULE(_C, module) {
  module.doc() = "The C++ part of torchmdla: fusion pass, run function, device calls.";
  py::class_<Executable, std::shared_ptr<Executable>>(
      module, "Executable", "Compiled code bound to the inputs and outputs of a group.")
      .def(py::init(&make_executable), py::arg("entry"), py::arg("packs"),
           py::arg("workspace_bytes"), py::arg("owner"), py::arg("inputs"), py::arg("outputs"));
  module.def("set_compiler", &set_compiler, py::arg("compile"), py::arg("make_meta"),
             py::arg("error_type"));
  module.def("set_device", &set_device, py::arg("device"), py::arg("ops"), py::arg("dtypes"));
  module.def("set_enabled", [](bool on) { settings().enabled = on; });
  module.def("is_enabled", [] { return settings().enabled.load(); });
  module.def("set_strict", [](bool on) { settings().strict = on; });
  module.def("set_background", [](bool on) { settings().background = on; });
  module.def("set_submit", &set_submit, py::arg("submit"));
  module.def("is_strict", [] { return settings().strict.load(); });
  module.def("set_max_specialisations",
             [](int64_t most) { settings().max_specialisations = most; });
  module.def("statistics", &statistics_dict);
  module.def("reset_statistics", [] { statistics().reset(); });
  module.def("device_calls", [] {
    std::map<std::string, uintptr_t> addresses;
    for (const auto& call : device_calls())
      addresses[call.name] = reinterpret_cast<uintptr_t>(call.address);
    return addresses;
  });
}

} // namespace torchmdla
