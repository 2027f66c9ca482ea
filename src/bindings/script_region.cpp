#include "script_region.h"

#include "base/forks.h"
#include "fusion/device_table.h"
#include "fusion/fusion_pass.h"
#include "group/statistics.h"
#include "group/ungrouped.h"
#include "python_group.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/jit/runtime/interpreter.h>
#include <torch/csrc/jit/runtime/jit_exception.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/custom_class.h>

#include <structmember.h>

#include <charconv>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace torchmdla {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Stack;

namespace {

// Give each node the place in the user's program that its attribute `source` has, "file:line".
void set_sources(Block* block) {
  static const auto source = c10::Symbol::attr("source");
  for (auto* node : block->nodes()) {
    for (auto* inner : node->blocks())
      set_sources(inner);
    if (!node->hasAttribute(source)) continue;
    const auto place = node->s(source);
    node->removeAttribute(source);
    const auto colon = place.rfind(':');
    size_t line = 0;
    if (colon != std::string::npos)
      std::from_chars(place.data() + colon + 1, place.data() + place.size(), line);
    const auto text =
        std::make_shared<torch::jit::Source>(std::string(node->kind().toQualString()) + "\n",
                                             place.substr(0, colon), line ? line - 1 : 0);
    node->setSourceRange(torch::jit::SourceRange(text, 0, text->size() - 1));
  }
}

// A graph with groups, and PyTorch's interpreter for it. The groups are formed in the first run
// with a device in use.
class ScriptRegion {
public:
  ScriptRegion(std::shared_ptr<Graph> graph, std::string name, std::vector<int64_t> parameters)
      : graph_(std::move(graph)), name_(std::move(name)), parameters_(std::move(parameters)) {
    set_sources(graph_->block());
    for (const auto* input : graph_->inputs())
      types_.push_back(input->type());
  }

  const std::vector<c10::TypePtr>& types() const { return types_; }

  void run(Stack& stack) {
    const auto form = current_form();
    torch::jit::InterpreterState(form->code).run(stack);
  }

  std::shared_ptr<Graph> graph() { return current_form()->graph; }

private:
  struct Form {
    std::shared_ptr<Graph> graph;
    torch::jit::Code code;
    bool has_groups;
  };

  std::shared_ptr<const Form> current_form() {
    auto form = form_.load();
    if (form && form->has_groups) return form;
    const auto table = current_device_table();
    if (form && !table) return form;
    const ForkSafeLock guard(mutex_);
    form = form_.load();
    if (form && form->has_groups) return form;
    form = make_form(table);
    form_.store(form);
    return form;
  }

  std::shared_ptr<const Form> make_form(const std::shared_ptr<const DeviceTable>& table) const {
    auto graph = graph_->copy();
    if (table) {
      statistics().groups += static_cast<int64_t>(fuse_groups(graph, *table,
                                                              {.parameters = parameters_,
                                                               .joins_training = true,
                                                               .ungrouped = count_ungrouped(*table),
                                                               .failed = count_failed_pass}));
      mark_first_run(graph->block());
    }
    torch::jit::Code code(graph, name_);
    return std::make_shared<const Form>(Form{std::move(graph), std::move(code), table != nullptr});
  }

  const std::shared_ptr<Graph> graph_; // without groups
  const std::string name_;
  const std::vector<int64_t> parameters_; // indices of inputs that are weights
  std::vector<c10::TypePtr> types_;
  std::mutex mutex_; // of making a form
  RcuCell<const Form> form_;
};

// Values of a region's last inputs, which many calls share.
struct BoundInputs {
  static constexpr auto name = "torchmdla.BoundInputs";
  std::vector<c10::IValue> values;
};

// --- the type ------------------------------------------------------------------------------------

struct RegionObject {
  PyObject_HEAD vectorcallfunc vectorcall;
  std::shared_ptr<ScriptRegion> region;
};

ScriptRegion& as_region(PyObject* self) {
  return *reinterpret_cast<RegionObject*>(self)->region;
}

bool may_be_none(c10::TypeKind kind) {
  return kind == c10::TypeKind::OptionalType || kind == c10::TypeKind::NoneType ||
         kind == c10::TypeKind::AnyType || kind == c10::TypeKind::UnionType;
}

// Values that the program does not use may be uninitialised. They are None in Python.
c10::IValue to_value(PyObject* object, const c10::TypePtr& type) {
  if (THPVariable_Check(object)) {
    if (type->kind() == c10::TypeKind::TensorType) return THPVariable_Unpack(object);
  } else if (type->kind() == c10::TypeKind::IntType && PyLong_CheckExact(object)) {
    return static_cast<int64_t>(PyLong_AsLongLong(object));
  }
  if (object == Py_None && !may_be_none(type->kind())) return c10::IValue::uninitialized();
  return torch::jit::toIValue(object, type);
}

PyObject* to_object(c10::IValue value) {
  const bool is_usual = value.isTensor() || value.isInt() || value.isDouble() || value.isBool();
  if (!is_usual && value.tagKind() == "Uninitialized") return py::none().release().ptr();
  return object_of(std::move(value));
}

// Raise an exception of the program, which has the type `torch.jit.Error`.
PyObject* raise_program_error(const std::exception& error) {
  const auto type = py::module::import("torch._C").attr("JITException");
  PyErr_SetString(type.ptr(), error.what());
  return nullptr;
}

PyObject* call_region(PyObject* self, PyObject* const* arguments, size_t flagged_count,
                      PyObject* keywords) {
  HANDLE_TH_ERRORS
  auto& region = as_region(self);
  const auto& types = region.types();
  auto count = static_cast<size_t>(PyVectorcall_NARGS(flagged_count));
  const BoundInputs* bound = nullptr;
  if (count != 0 && PyCapsule_IsValid(arguments[count - 1], BoundInputs::name))
    bound = static_cast<BoundInputs*>(PyCapsule_GetPointer(arguments[--count], BoundInputs::name));
  const auto total = count + (bound ? bound->values.size() : 0);
  TORCH_CHECK_TYPE(total == types.size() && !keywords, "a region takes ", types.size(),
                   " inputs by position, got ", total);
  Stack stack;
  stack.reserve(total);
  for (size_t i = 0; i < count; ++i)
    stack.push_back(to_value(arguments[i], types[i]));
  if (bound) stack.insert(stack.end(), bound->values.begin(), bound->values.end());
  try {
    const py::gil_scoped_release without_gil;
    region.run(stack);
  } catch (const torch::jit::JITException& error) {
    return raise_program_error(error);
  }
  if (stack.size() == 1) return to_object(std::move(stack[0]));
  auto results = py::tuple(stack.size());
  for (size_t i = 0; i < stack.size(); ++i)
    PyTuple_SET_ITEM(results.ptr(), static_cast<Py_ssize_t>(i), to_object(std::move(stack[i])));
  return results.release().ptr();
  END_HANDLE_TH_ERRORS
}

PyObject* new_region(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  HANDLE_TH_ERRORS
  static const char* names[] = {"graph", "name", "parameters", nullptr};
  PyObject *graph, *parameters;
  const char* name;
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "OsO", const_cast<char**>(names), &graph,
                                   &name, &parameters))
    return nullptr;
  auto region =
      std::make_shared<ScriptRegion>(py::handle(graph).cast<std::shared_ptr<Graph>>(), name,
                                     py::handle(parameters).cast<std::vector<int64_t>>());
  auto* self = type->tp_alloc(type, 0);
  if (!self) return nullptr;
  reinterpret_cast<RegionObject*>(self)->vectorcall = call_region;
  new (&reinterpret_cast<RegionObject*>(self)->region) std::shared_ptr(std::move(region));
  return self;
  END_HANDLE_TH_ERRORS
}

void delete_region(PyObject* self) {
  auto* type = Py_TYPE(self);
  std::destroy_at(&reinterpret_cast<RegionObject*>(self)->region);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* get_region_graph(PyObject* self, void*) {
  HANDLE_TH_ERRORS
  return py::cast(as_region(self).graph()).release().ptr();
  END_HANDLE_TH_ERRORS
}

// Return an object of one of PyTorch's C++ classes from its state, as PyTorch's reader of files
// does.
py::object make_custom_object(const std::string& class_name, const py::object& state) {
  const auto type = torch::getCustomClass(class_name);
  TORCH_CHECK(type, "PyTorch does not have the class ", class_name,
              ". Import the library that registers it.");
  auto object = c10::ivalue::Object::create(c10::StrongTypePtr(nullptr, type), 1);
  auto* set_state = type->findMethod("__setstate__");
  TORCH_CHECK(set_state, "objects of the class ", class_name, " cannot be made from a state");
  const auto& state_type = set_state->getSchema().arguments().at(1).type();
  Stack stack{object, torch::jit::toIValue(state, state_type)};
  set_state->run(stack);
  return torch::jit::toPyObject(c10::IValue(std::move(object)));
}

void delete_bound_inputs(PyObject* capsule) {
  delete static_cast<BoundInputs*>(PyCapsule_GetPointer(capsule, BoundInputs::name));
}

PyObject* bind_inputs(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  const auto& types = as_region(self).types();
  const auto number = static_cast<size_t>(count);
  TORCH_CHECK_TYPE(number <= types.size(), "a region takes ", types.size(), " inputs, got ",
                   number);
  auto bound = std::make_unique<BoundInputs>();
  const auto first = types.size() - number;
  for (size_t i = 0; i < number; ++i)
    bound->values.push_back(to_value(arguments[i], types[first + i]));
  auto* capsule = PyCapsule_New(bound.get(), BoundInputs::name, delete_bound_inputs);
  if (capsule) static_cast<void>(bound.release());
  return capsule;
  END_HANDLE_TH_ERRORS
}

PyMethodDef region_methods[] = {
    {"bind", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(bind_inputs)),
     METH_FASTCALL, "Return the last inputs, for calls that pass them as one argument."},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef region_attributes[] = {
    {"graph", get_region_graph, nullptr, "the graph with its groups", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMemberDef region_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(RegionObject, vectorcall), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyType_Slot region_slots[] = {
    {Py_tp_doc, const_cast<char*>("A part of a program of TorchScript: call it with its inputs.")},
    {Py_tp_new, reinterpret_cast<void*>(new_region)},
    {Py_tp_dealloc, reinterpret_cast<void*>(delete_region)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_getset, region_attributes},
    {Py_tp_methods, region_methods},
    {Py_tp_members, region_members},
    {0, nullptr}};

PyType_Spec region_type = {"torchmdla._C.ScriptRegion", sizeof(RegionObject), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL, region_slots};

} // namespace

void bind_script_region(py::module& module) {
  auto type = py::reinterpret_steal<py::object>(PyType_FromSpec(&region_type));
  if (!type) throw py::error_already_set();
  module.add_object("ScriptRegion", type);
  module.def("make_custom_object", &make_custom_object, py::arg("class_name"), py::arg("state"),
             "Return an object of one of PyTorch's C++ classes from its state.");
}

} // namespace torchmdla
