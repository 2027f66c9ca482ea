// Registers the pass and the operator with PyTorch's JIT, and binds the extension to Python.

#include "acap/bindings.h"
#include "compiler.h"
#include "device_table.h"
#include "flagged_group.h"
#include "forks.h"
#include "fusion_pass.h"
#include "lazy/bindings.h"
#include "packed.h"
#include "profiling.h"
#include "python_group.h"
#include "python_objects.h"
#include "runtime.h"
#include "script_subgraph.h"
#include "statistics.h"

#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/jit/passes/pass_manager.h>
#include <torch/csrc/jit/python/pybind.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/jit/runtime/custom_operator.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <optional>
#include <unordered_set>
#include <vector>

namespace py = pybind11;

namespace torchmdla {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Operation;
using torch::jit::Stack;

namespace {

// --- the JIT
// ---------------------------------------------------------------------------------------

// What autograd runs is the backward of a differentiable graph, which was profiled with that.
bool has_run() {
  return torch::jit::getNumProfiledRuns() != 0 || torch::autograd::get_current_node();
}

void run_pass(std::shared_ptr<Graph>& graph) {
  const auto table = current_device_table();
  if (!table) return;
  statistics().groups += static_cast<int64_t>(fuse_groups(graph, *table));
  if (!has_run()) mark_first_run(graph->block());
}

Operation make_operation(const Node* node) {
  if (node->hasAttribute(flags_attribute())) {
    auto group = std::make_shared<FlaggedGroup>(node);
    return [group](Stack& stack) { group->run(stack); };
  }
  auto group = std::make_shared<CompilationGroup>(node);
  return [group](Stack& stack) { group->run(stack); };
}

const torch::jit::RegisterOperators operators(
    {torch::jit::Operator(group_symbol(), make_operation, c10::AliasAnalysisKind::PURE_FUNCTION),
     torch::jit::Operator(acap_group_symbol(), make_operation,
                          c10::AliasAnalysisKind::PURE_FUNCTION)});

const torch::jit::RegisterPass pass(run_pass);

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

// Numbers of symbols, or None.
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

// The graph of a TorchScript group, or what a group of Python's was made of.
py::object to_python(const Subgraph& subgraph) {
  if (const auto* script = dynamic_cast<const ScriptSubgraph*>(&subgraph))
    return py::cast(script->graph());
  return dynamic_cast<const PythonSubgraph&>(subgraph).object();
}

// Calls Python from a thread without the GIL. Exceptions go to the user.
template <class Call> auto in_python(Call call) {
  py::gil_scoped_acquire gil;
  try {
    return call();
  } catch (py::error_already_set& error) {
    error.restore();
    throw PassingError();
  }
}

// What becomes of a CompileError.
struct OnFailure {
  std::shared_ptr<PyObject> error_type, warn;

  [[noreturn]] void operator()(const py::error_already_set& error) const {
    const auto exception = hold(error.value());
    CompileFailure failure(py::str(error.value().attr("reason")));
    failure.raise = [exception] {
      py::gil_scoped_acquire gil;
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.get())), exception.get());
      throw PassingError();
    };
    failure.warn = [exception, warn = warn](bool divided) {
      in_python([&] { borrow(warn)(borrow(exception), divided); });
    };
    failure.elsewhere = error.value().attr("elsewhere").cast<bool>();
    failure.left_out = error.value().attr("nodes").cast<std::vector<size_t>>();
    failure.too_long = error.value().attr("too_long").cast<std::optional<int64_t>>();
    if (const auto pause = error.value().attr("retry_after").cast<std::optional<double>>())
      failure.retry_after = std::chrono::duration_cast<std::chrono::steady_clock::duration>(
          std::chrono::duration<double>(*pause));
    throw failure;
  }
};

// A CompileError becomes a CompileFailure, any other exception goes to the user.
template <class Call> auto in_python(const OnFailure& on_failure, Call call) {
  return in_python([&] {
    try {
      return call();
    } catch (const py::error_already_set& error) {
      if (error.matches(borrow(on_failure.error_type))) on_failure(error);
      throw;
    }
  });
}

const std::unordered_map<std::string, SizeProgram::Operation> size_operations{
    {"constant", SizeProgram::Operation::constant},
    {"symbol", SizeProgram::Operation::symbol},
    {"add", SizeProgram::Operation::add},
    {"mul", SizeProgram::Operation::mul},
    {"floor_div", SizeProgram::Operation::floor_div},
    {"mod", SizeProgram::Operation::mod},
    {"div", SizeProgram::Operation::div},
    {"min", SizeProgram::Operation::min},
    {"max", SizeProgram::Operation::max},
    {"floor", SizeProgram::Operation::floor},
    {"ceil", SizeProgram::Operation::ceil},
    {"trunc", SizeProgram::Operation::trunc},
    {"eq", SizeProgram::Operation::eq},
    {"ne", SizeProgram::Operation::ne},
    {"lt", SizeProgram::Operation::lt},
    {"le", SizeProgram::Operation::le},
    {"and", SizeProgram::Operation::logical_and},
    {"or", SizeProgram::Operation::logical_or},
    {"not", SizeProgram::Operation::logical_not},
};

// As torchmdla.capture.size_program.SizeNodes.
SizeProgram size_program(const py::object& made) {
  using Entry = std::tuple<std::string, double, size_t, size_t>;
  auto [entries, computed, conditions] =
      made.cast<std::tuple<std::vector<Entry>, std::vector<size_t>, std::vector<size_t>>>();
  std::vector<SizeProgram::Node> nodes;
  for (const auto& [operation, number, left, right] : entries)
    nodes.push_back({size_operations.at(operation), number, left, right});
  return {std::move(nodes), std::move(computed), std::move(conditions)};
}

// `compile(subgraph, record, parameters, device)` returns an Executable, `compile_dynamic(…,
// places, values, written_out)` one for any sizes and what a call evaluates for it. Both raise
// `error_type`, of which `warn(error, divided)` tells the user; its `nodes` are those of the
// subgraph that are to blame. `make_meta(dtype, shape, strides)` makes the record's entries.
// `tell_fault(group, fault, strict)` warns of a device's fault or raises.
void set_compiler_functions(const py::object& compile, const py::object& compile_dynamic,
                            const py::object& warn, const py::object& make_meta,
                            const py::object& error_type, const py::object& tell_fault) {
  const auto function = hold(compile), dynamic_function = hold(compile_dynamic),
             meta = hold(make_meta), tell = hold(tell_fault);
  const OnFailure failure{hold(error_type), hold(warn)};
  Compiler compiler;
  compiler.compile = [=](const CompileRequest& request) {
    return in_python(failure, [&]() -> std::shared_ptr<const Executable> {
      return borrow(function)(to_python(request.subgraph), to_python(request.record, borrow(meta)),
                              request.parameters, request.device)
          .cast<std::shared_ptr<Executable>>();
    });
  };
  compiler.compile_dynamic = [=](const DynamicRequest& request) {
    return in_python(failure, [&]() -> DynamicExecutable {
      const auto& [subgraph, record, parameters, device] = request.typical;
      const py::tuple made = borrow(dynamic_function)(
          to_python(subgraph), to_python(record, borrow(meta)), parameters, device,
          to_python(request.places), to_python(request.values), request.written_out);
      return {made[0].cast<std::shared_ptr<Executable>>(), size_program(made[1])};
    });
  };
  compiler.tell_fault = [=](const std::string& group, const std::string& fault, bool strict) {
    in_python([&] { borrow(tell)(group, fault, strict); });
  };
  set_compiler(std::move(compiler));
}

// `submit(task)` runs a callable without arguments on another thread, later.
void set_submit(const py::object& submit) {
  const auto held = hold(submit);
  set_background([held](std::function<void()> task) {
    py::gil_scoped_acquire gil;
    borrow(held)(py::cpp_function([task = std::move(task)] {
      py::gil_scoped_release without_gil;
      task();
    }));
  });
}

InputBinding input_binding(const std::string& source, const py::object& from) {
  using Source = InputBinding::Source;
  if (source == "constant") return {Source::constant, 0, std::nullopt, from.cast<at::Tensor>()};
  static const std::unordered_map<std::string, Source> sources{{"dense", Source::dense},
                                                               {"contiguous", Source::contiguous},
                                                               {"scalar", Source::scalar},
                                                               {"size", Source::size}};
  const auto found = sources.find(source);
  TORCH_CHECK_VALUE(found != sources.end(),
                    "an argument comes from \"dense\", \"contiguous\", "
                    "\"scalar\", \"size\" or \"constant\", not \"",
                    source, "\"");
  if (!py::isinstance<py::tuple>(from)) return {found->second, from.cast<size_t>(), {}, {}};
  const auto [input, element] = from.cast<std::pair<size_t, size_t>>();
  return {found->second, input, element, {}};
}

// Pairs of exponents and a coefficient.
using Terms = std::vector<std::pair<std::vector<int64_t>, int64_t>>;

Polynomial polynomial(const Terms& terms) {
  Polynomial made;
  for (const auto& [exponents, factor] : terms)
    made.terms.push_back({exponents, factor});
  return made;
}

// Sizes or strides: integers, or terms where they vary.
void split_numbers(const py::sequence& mixed, std::vector<int64_t>& numbers,
                   std::vector<std::pair<size_t, Polynomial>>& varying) {
  for (size_t i = 0; i < mixed.size(); ++i) {
    const bool varies = py::isinstance<py::tuple>(mixed[i]);
    numbers.push_back(varies ? 0 : mixed[i].cast<int64_t>());
    if (varies) varying.emplace_back(i, polynomial(mixed[i].cast<Terms>()));
  }
}

OutputBinding output_binding(const std::string& kind, const py::object& output) {
  if (kind == "constant") return to_ivalue(output);
  if (kind == "number") return polynomial(output.cast<Terms>());
  if (kind == "numbers") {
    OutputList list;
    split_numbers(output, list.numbers, list.varying);
    return list;
  }
  TORCH_CHECK_VALUE(kind == "tensor",
                    "an output is a \"tensor\", \"number\", \"numbers\" or \"constant\", not \"",
                    kind, "\"");
  const auto [result, dtype, sizes, strides] =
      output.cast<std::tuple<size_t, at::ScalarType, py::sequence, py::sequence>>();
  OutputTensor tensor{result, dtype, {}, {}, {}, {}};
  split_numbers(sizes, tensor.sizes, tensor.varying_sizes);
  split_numbers(strides, tensor.strides, tensor.varying_strides);
  return tensor;
}

using KindAndSource = std::pair<std::string, py::object>;
using PackEntry = std::tuple<uintptr_t, std::string, std::vector<size_t>, int64_t, uintptr_t>;

std::shared_ptr<Executable> make_executable(uintptr_t entry, const std::vector<PackEntry>& packs,
                                            int64_t workspace_bytes, const py::object& owner,
                                            const std::vector<KindAndSource>& inputs,
                                            const std::vector<KindAndSource>& outputs,
                                            const std::vector<size_t>& unversioned,
                                            uintptr_t workspace, uintptr_t fault) {
  std::vector<InputBinding> input_bindings;
  for (const auto& [source, from] : inputs)
    input_bindings.push_back(input_binding(source, from));
  for (const size_t argument : unversioned)
    input_bindings.at(argument).unversioned = true;
  std::vector<OutputBinding> output_bindings;
  for (const auto& [kind, output] : outputs)
    output_bindings.push_back(output_binding(kind, output));
  CompiledCode code{reinterpret_cast<Entry>(entry),
                    {},
                    workspace_bytes,
                    reinterpret_cast<int64_t (*)(const int64_t*)>(workspace),
                    hold(owner),
                    reinterpret_cast<const char* (*)()>(fault)};
  for (const auto& [function, recipe, arguments, bytes, release] : packs)
    code.packs.push_back({reinterpret_cast<Entry>(function), recipe, arguments, bytes,
                          reinterpret_cast<void (*)(void*)>(release)});
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

void add_device(const std::string& device, const std::vector<OpEntry>& ops,
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
  add_device_table(std::move(table));
}

// Drops what was packed of these tensors, or of all.
void refresh(const std::optional<std::vector<at::Tensor>>& tensors) {
  std::unordered_set<const c10::StorageImpl*> storages;
  for (const auto& tensor : tensors.value_or(std::vector<at::Tensor>()))
    storages.insert(tensor.storage().unsafeGetStorageImpl());
  const py::gil_scoped_release without_gil;
  refresh_packs([&](const ParameterState& parameter) {
    return !tensors || storages.count(parameter.storage()) != 0;
  });
}

py::dict statistics_dict() {
  py::dict result;
  result["groups"] = statistics().groups.load();
  result["specialisations"] = statistics().specialisations.load();
  result["dynamic"] = statistics().dynamic.load();
  result["not_dynamic"] = statistics().not_dynamic();
  result["fallbacks"] = statistics().fallbacks();
  return result;
}

} // namespace

PYBIND11_MODULE(_C, module) {
  module.doc() = "The C++ part of torchmdla: fusion pass, run function, device calls.";
  py::class_<Executable, std::shared_ptr<Executable>>(
      module, "Executable", "Compiled code bound to the inputs and outputs of a group.")
      .def(py::init(&make_executable), py::arg("entry"), py::arg("packs"),
           py::arg("workspace_bytes"), py::arg("owner"), py::arg("inputs"), py::arg("outputs"),
           py::arg("unversioned") = std::vector<size_t>(), py::arg("workspace") = 0,
           py::arg("fault") = 0);
  bind_group(module);
  bind_lazy(module);
  acap::bind(module);
  module.def("set_compiler", &set_compiler_functions, py::arg("compile"),
             py::arg("compile_dynamic"), py::arg("warn"), py::arg("make_meta"),
             py::arg("error_type"), py::arg("tell_fault"));
  module.def("add_device", &add_device, py::arg("device"), py::arg("ops"), py::arg("dtypes"));
  module.def("use_device", &use_device_table, py::arg("device"));
  module.def("set_enabled", [](bool on) {
    settings().enabled = on;
    leave_out_profiling(on);
  });
  module.def("is_enabled", [] { return settings().enabled.load(); });
  module.def("set_strict", [](bool on) { settings().strict = on; });
  module.def("set_background", [](bool on) { settings().background = on; });
  module.def("set_dynamic", [](bool on) { settings().dynamic = on; });
  module.def("set_submit", &set_submit, py::arg("submit"));
  module.def("is_strict", [] { return settings().strict.load(); });
  module.def("set_max_specialisations",
             [](int64_t most) { settings().max_specialisations = most; });
  module.def("refresh", &refresh, py::arg("tensors"));
  module.def("drop_dead_packs", &drop_dead_packs, py::call_guard<py::gil_scoped_release>());
  module.def("statistics", &statistics_dict);
  module.def("reset_statistics", [] { statistics().reset(); });
  module.def("enter_alone", &enter_alone);
  module.def("leave_alone", &leave_alone);
  module.def("device_calls", [] {
    std::map<std::string, uintptr_t> addresses;
    for (const auto& call : device_calls())
      addresses[call.name] = reinterpret_cast<uintptr_t>(call.address);
    return addresses;
  });
}

} // namespace torchmdla
