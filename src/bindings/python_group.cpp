#include "python_group.h"

#include "group/compilation_group.h"
#include "group/script_subgraph.h"

#include <algorithm>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include <structmember.h>

#include <cstddef>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace torchmdla {

using torch::jit::Stack;

PyObject* object_of(c10::IValue value) {
  if (value.isTensor()) return THPVariable_Wrap(std::move(value).toTensor());
  return torch::jit::toPyObject(std::move(value)).release().ptr();
}

namespace {

// --- values --------------------------------------------------------------------------------------

c10::IValue from_python(PyObject* value) {
  if (THPVariable_Check(value)) return THPVariable_Unpack(value);
  if (PyFloat_CheckExact(value)) return PyFloat_AS_DOUBLE(value);
  return to_ivalue(value);
}

py::tuple take_inputs(Stack& stack, size_t count) {
  const auto inputs = torch::jit::last(stack, count);
  py::tuple result(count);
  for (size_t i = 0; i < count; ++i)
    PyTuple_SET_ITEM(result.ptr(), static_cast<Py_ssize_t>(i), object_of(inputs[i]));
  return result;
}

// --- records -------------------------------------------------------------------------------------

TensorMeta to_meta(const py::handle& meta) {
  return {meta.attr("dtype").cast<at::ScalarType>(),
          meta.attr("shape").cast<std::vector<int64_t>>(),
          meta.attr("strides").cast<std::vector<int64_t>>()};
}

bool is_meta(const py::handle& seen) {
  return py::hasattr(seen, "strides");
}

bool has_metas(const py::list& list) {
  return std::any_of(list.begin(), list.end(), is_meta);
}

decltype(RecordedValue::value) to_seen(const py::handle& seen) {
  if (is_meta(seen)) return to_meta(seen);
  if (!py::isinstance<py::list>(seen)) return to_ivalue(seen);
  const auto list = py::reinterpret_borrow<py::list>(seen);
  if (!has_metas(list)) return to_ivalue(seen);
  TensorMetas metas;
  for (const auto& item : list)
    metas.push_back(item.is_none() ? std::nullopt : std::optional(to_meta(item)));
  return metas;
}

Record to_record(const py::dict& record) {
  Record result;
  for (const auto& [name, seen] : record)
    result.push_back({name.cast<std::string>(), to_seen(seen)});
  return result;
}

// --- calls ---------------------------------------------------------------------------------------

// Throw a Python exception as a C++ exception.
[[noreturn]] void throw_python_error(py::error_already_set& error) {
  error.restore();
  python_error passing;
  passing.persist();
  throw std::move(passing);
}

// Call the method `function` with the inputs on the stack, and pass its result to `use`.
template <class Use>
void call(const py::object& object, const char* function, Stack& stack, Use use) {
  try {
    const auto inputs = take_inputs(stack, stack.size());
    use(object.attr(function)(*inputs));
  } catch (py::error_already_set& error) {
    throw_python_error(error);
  }
}

void replace(Stack& stack, const py::handle& results) {
  stack.clear();
  for (const auto& result : py::reinterpret_borrow<py::sequence>(results))
    stack.push_back(from_python(result.ptr()));
}

// --- the type ------------------------------------------------------------------------------------

// An output that the call writes to an input. It is not returned.
struct WrittenInput {
  size_t output;
  size_t input;
};

struct PythonGroup {
  std::shared_ptr<CompilationGroup> group;
  std::shared_ptr<PythonSubgraph> subgraph;
  std::vector<int64_t> parameters;
  std::string name;
  size_t num_inputs;
  std::vector<WrittenInput> written;
};

struct GroupObject {
  PyObject_HEAD vectorcallfunc vectorcall;
  PythonGroup content;
};

PythonGroup& as_group(PyObject* self) {
  return reinterpret_cast<GroupObject*>(self)->content;
}

// Write outputs to inputs, and leave None in their places. Compiled code may have written to the
// input itself, and is its output then.
void write_inputs(Stack& stack, const std::vector<WrittenInput>& written,
                  c10::ArrayRef<at::Tensor> inputs) {
  for (size_t i = 0; i < written.size(); ++i) {
    auto& output = stack.at(written[i].output);
    const auto& input = inputs[i];
    if (!output.toTensor().is_same(input))
      input.copy_(output.toTensor());
    else if (!input.is_inference())
      input.unsafeGetTensorImpl()->bump_version();
    output = c10::IValue();
  }
}

// Return the list in the keyword `inputs`, or null.
PyObject* list_of_inputs(PyObject* const* arguments, size_t count, PyObject* keywords) {
  if (count != 0 || !keywords || PyTuple_GET_SIZE(keywords) != 1) return nullptr;
  const bool is_inputs =
      PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(keywords, 0), "inputs") == 0;
  return is_inputs && PyList_CheckExact(arguments[0]) ? arguments[0] : nullptr;
}

PyObject* call_group(PyObject* self, PyObject* const* arguments, size_t flagged_count,
                     PyObject* keywords) {
  HANDLE_TH_ERRORS
  const auto& object = as_group(self);
  auto count = static_cast<size_t>(PyVectorcall_NARGS(flagged_count));
  auto* list = list_of_inputs(arguments, count, keywords);
  if (list) count = static_cast<size_t>(PyList_GET_SIZE(list));
  TORCH_CHECK_TYPE(count == object.num_inputs && (list || !keywords), object.name, " takes ",
                   object.num_inputs, " inputs by position or as a list, got ", count);
  Stack stack;
  stack.reserve(count);
  for (size_t i = 0; i < count; ++i)
    stack.push_back(from_python(list ? PyList_GET_ITEM(list, i) : arguments[i]));
  if (list && PyList_SetSlice(list, 0, PyList_GET_SIZE(list), nullptr) != 0) throw python_error();
  {
    py::gil_scoped_release without_gil;
    c10::SmallVector<at::Tensor, 4> inputs;
    for (const auto& written : object.written)
      inputs.push_back(stack[written.input].toTensor());
    object.group->run(stack, /*gives_up_inputs=*/list != nullptr);
    write_inputs(stack, object.written, inputs);
  }
  auto results = py::tuple(stack.size());
  for (size_t i = 0; i < stack.size(); ++i)
    PyTuple_SET_ITEM(results.ptr(), static_cast<Py_ssize_t>(i), object_of(std::move(stack[i])));
  return results.release().ptr();
  END_HANDLE_TH_ERRORS
}

// Convert a Python object, or None.
template <class Value> std::optional<Value> to_optional(PyObject* object) {
  return py::handle(object).cast<std::optional<Value>>();
}

std::vector<VaryingNumber> to_varying(PyObject* pairs) {
  std::vector<VaryingNumber> result;
  using Pairs = std::vector<std::pair<size_t, size_t>>;
  for (const auto& [input, number] : to_optional<Pairs>(pairs).value_or(Pairs()))
    result.push_back({input, number});
  return result;
}

std::vector<WrittenInput> to_written(PyObject* pairs) {
  std::vector<WrittenInput> result;
  using Pairs = std::vector<std::pair<size_t, size_t>>;
  for (const auto& [output, input] : to_optional<Pairs>(pairs).value_or(Pairs()))
    result.push_back({output, input});
  return result;
}

PyObject* new_group(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  HANDLE_TH_ERRORS
  static const char* names[] = {"subgraph",   "name",    "device",     "parameters",
                                "num_inputs", "strict",  "background", "max_specialisations",
                                "varying",    "written", nullptr};
  PyObject *subgraph, *parameters, *strict = Py_None, *background = Py_None, *most = Py_None;
  PyObject *varying = Py_None, *written = Py_None;
  const char *name, *device;
  Py_ssize_t num_inputs;
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "OssOn|OOOOO", const_cast<char**>(names),
                                   &subgraph, &name, &device, &parameters, &num_inputs, &strict,
                                   &background, &most, &varying, &written))
    return nullptr;
  PythonGroup content{
      nullptr,
      std::make_shared<PythonSubgraph>(py::reinterpret_borrow<py::object>(subgraph)),
      py::handle(parameters).cast<std::vector<int64_t>>(),
      name,
      static_cast<size_t>(num_inputs),
      to_written(written)};
  content.group = std::make_shared<CompilationGroup>(GroupDescription{
      content.subgraph,
      device,
      name,
      content.parameters,
      InputPaths(content.num_inputs),
      {to_optional<bool>(strict), to_optional<bool>(background), to_optional<int64_t>(most)},
      /*has_run=*/true,
      to_varying(varying)});
  auto* self = type->tp_alloc(type, 0);
  if (!self) return nullptr;
  reinterpret_cast<GroupObject*>(self)->vectorcall = call_group;
  new (&as_group(self)) PythonGroup(std::move(content));
  ++statistics().groups;
  return self;
  END_HANDLE_TH_ERRORS
}

void delete_group(PyObject* self) {
  auto* type = Py_TYPE(self);
  std::destroy_at(&as_group(self));
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* get_name(PyObject* self, void*) {
  return PyUnicode_FromString(as_group(self).name.c_str());
}

PyObject* get_subgraph(PyObject* self, void*) {
  return as_group(self).subgraph->object().release().ptr();
}

PyObject* get_parameters(PyObject* self, void*) {
  HANDLE_TH_ERRORS
  return py::cast(as_group(self).parameters).release().ptr();
  END_HANDLE_TH_ERRORS
}

PyGetSetDef attributes[] = {
    {"__name__", get_name, nullptr, "what PyTorch's profiles and FX's code call it", nullptr},
    {"subgraph", get_subgraph, nullptr, "what it computes", nullptr},
    {"parameters", get_parameters, nullptr, "indices of inputs that are weights", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(GroupObject, vectorcall), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char*>("A group of an FX graph: call it with its inputs.")},
    {Py_tp_new, reinterpret_cast<void*>(new_group)},
    {Py_tp_dealloc, reinterpret_cast<void*>(delete_group)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_getset, attributes},
    {Py_tp_members, members},
    {0, nullptr}};

PyType_Spec specification = {"torchmdla._C.Group", sizeof(GroupObject), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL, slots};

} // namespace

void PythonSubgraph::run(Stack& stack) {
  py::gil_scoped_acquire gil;
  call(object(), "run", stack, [&](const py::object& results) { replace(stack, results); });
}

Record PythonSubgraph::run_and_record(Stack& stack) {
  py::gil_scoped_acquire gil;
  Record record;
  call(object(), "run_and_record", stack, [&](const py::object& result) {
    const auto [results, seen] = result.cast<std::pair<py::object, py::dict>>();
    replace(stack, results);
    record = to_record(seen);
  });
  return record;
}

std::vector<double> PythonSubgraph::time_nodes(Stack& stack) {
  py::gil_scoped_acquire gil;
  std::vector<double> seconds;
  if (py::hasattr(object(), "time_nodes"))
    call(object(), "time_nodes", stack,
         [&](const py::object& result) { seconds = result.cast<std::vector<double>>(); });
  return seconds;
}

std::optional<Structure> PythonSubgraph::structure(const std::string& device,
                                                   const std::vector<int64_t>& parameters) const {
  py::gil_scoped_acquire gil;
  try {
    if (!py::hasattr(object(), "structure")) return std::nullopt;
    const auto result = object().attr("structure")(device, parameters);
    if (result.is_none()) return std::nullopt;
    const auto bytes = result.cast<std::string_view>();
    Structure structure;
    TORCH_CHECK(bytes.size() == structure.size(), "a structure has ", structure.size(), " bytes");
    std::memcpy(structure.data(), bytes.data(), bytes.size());
    return structure;
  } catch (py::error_already_set& error) {
    throw_python_error(error);
  }
}

at::Tensor PythonSubgraph::constant(size_t node, std::optional<size_t> element) const {
  py::gil_scoped_acquire gil;
  try {
    const auto result = object().attr("constant")(node);
    return (element ? py::object(result[py::int_(*element)]) : py::object(result))
        .cast<at::Tensor>();
  } catch (py::error_already_set& error) {
    throw_python_error(error);
  }
}

Subgraph::Division PythonSubgraph::divide(const std::vector<size_t>& left_out,
                                          const std::vector<int64_t>& parameters) {
  py::gil_scoped_acquire gil;
  try {
    const auto result = object().attr("divide")(left_out, parameters);
    if (result.is_none()) return nullptr;
    return [run = own_reference(result)](Stack& stack) {
      py::gil_scoped_acquire gil;
      call(borrow_reference(run), "__call__", stack,
           [&](const py::object& results) { replace(stack, results); });
    };
  } catch (py::error_already_set& error) {
    throw_python_error(error);
  }
}

py::list to_python(c10::ArrayRef<c10::IValue> values) {
  py::list result;
  for (const auto& value : values)
    result.append(py::reinterpret_steal<py::object>(object_of(c10::IValue(value))));
  return result;
}

py::object to_python(const Subgraph& subgraph) {
  if (const auto* script = dynamic_cast<const ScriptSubgraph*>(&subgraph))
    return py::cast(script->graph());
  return dynamic_cast<const PythonSubgraph&>(subgraph).object();
}

void bind_group(py::module& module) {
  auto type = py::reinterpret_steal<py::object>(PyType_FromSpec(&specification));
  if (!type) throw py::error_already_set();
  module.add_object("Group", type);
}

} // namespace torchmdla
