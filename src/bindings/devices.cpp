// Loading of devices' code: libraries of vendors, and Python's devices for packages.

#include "bindings.h"
#include "package/device_code.h"
#include "python/python_objects.h"
#include "runtime/device_calls.h"
#include "runtime/device_events.h"
#include "runtime/kineto.h"

#include <pybind11/stl.h>

#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace torchmdla {

namespace {

struct PythonCode : CodeOwner {
  explicit PythonCode(const py::object& object) : object(own_reference(object)) {}
  const std::shared_ptr<PyObject> object;
};

// Entry, packs, releases, workspace, fault, whether it competes with eager, context, wait, forget,
// owner.
using CodeFields = std::tuple<uintptr_t, std::vector<uintptr_t>, std::vector<uintptr_t>, uintptr_t,
                              uintptr_t, bool, uintptr_t, uintptr_t, uintptr_t, py::object>;

template <class Function> Function as_function(uintptr_t address) {
  return reinterpret_cast<Function>(address);
}

DeviceCode device_code(const CodeFields& fields) {
  const auto& [entry, packs, releases, workspace, fault, competes_with_eager, context, wait, forget,
               owner] = fields;
  DeviceCode code{as_function<Entry>(entry),
                  {},
                  {},
                  as_function<int64_t (*)(const int64_t*)>(workspace),
                  as_function<const char* (*)()>(fault),
                  competes_with_eager,
                  as_function<void*>(context),
                  as_function<int32_t (*)(void*)>(wait),
                  as_function<void (*)(void*)>(forget),
                  std::make_shared<PythonCode>(owner)};
  for (const auto pack : packs)
    code.packs.push_back(as_function<Entry>(pack));
  for (const auto release : releases)
    code.releases.push_back(as_function<void (*)(void*)>(release));
  return code;
}

// Call Python from any thread. Turn its exceptions into those of C++.
template <class Call> auto call_python(Call call) {
  const py::gil_scoped_acquire gil;
  try {
    return call();
  } catch (const py::error_already_set& error) {
    throw std::runtime_error(py::str(error.value()).cast<std::string>());
  }
}

void set_functions(const py::object& features, const py::object& load) {
  set_python_devices(
      {[features = own_reference(features)](const std::string& device) {
         return call_python([&] {
           return borrow_reference(features)(device).cast<std::optional<std::set<std::string>>>();
         });
       },
       [load = own_reference(load)](const std::string& device, std::span<const std::byte> block) {
         return call_python([&] {
           const py::bytes bytes(reinterpret_cast<const char*>(block.data()), block.size());
           return device_code(borrow_reference(load)(device, bytes).cast<CodeFields>());
         });
       }});
}

std::shared_ptr<LibraryCode> load(const std::shared_ptr<DeviceLibrary>& library,
                                  const py::bytes& object_code, const std::string& entry,
                                  const std::string& workspace, const std::string& fault,
                                  const std::vector<std::string>& packs) {
  const std::string_view bytes = object_code;
  const py::gil_scoped_release without_gil;
  return std::make_shared<LibraryCode>(library, std::as_bytes(std::span(bytes)),
                                       CodeNames{entry, workspace, fault, packs});
}

template <class Function> py::tuple addresses(Function* const* functions, size_t count) {
  py::tuple result(functions ? count : 0);
  for (size_t i = 0; i < result.size(); ++i)
    result[i] = reinterpret_cast<uintptr_t>(functions[i]);
  return result;
}

} // namespace

void bind_devices(py::module& module) {
  py::register_exception<DeviceLibraryError>(module, "DeviceLibraryError", PyExc_RuntimeError);
  py::class_<LibraryCode, std::shared_ptr<LibraryCode>>(module, "LibraryCode",
                                                        "Code that a device's library loaded.")
      .def_property_readonly("entry",
                             [](const LibraryCode& loaded) {
                               return reinterpret_cast<uintptr_t>(loaded.code().entry);
                             })
      .def_property_readonly("packs",
                             [](const LibraryCode& loaded) {
                               return addresses(loaded.code().packs, loaded.pack_count());
                             })
      .def_property_readonly("releases",
                             [](const LibraryCode& loaded) {
                               return addresses(loaded.code().releases, loaded.pack_count());
                             })
      .def_property_readonly("workspace",
                             [](const LibraryCode& loaded) {
                               return reinterpret_cast<uintptr_t>(loaded.code().workspace);
                             })
      .def_property_readonly("fault",
                             [](const LibraryCode& loaded) {
                               return reinterpret_cast<uintptr_t>(loaded.code().fault);
                             })
      .def_property_readonly("context",
                             [](const LibraryCode& loaded) {
                               return reinterpret_cast<uintptr_t>(loaded.code().context);
                             })
      .def_property_readonly(
          "wait",
          [](const LibraryCode& loaded) { return reinterpret_cast<uintptr_t>(loaded.code().wait); })
      .def_property_readonly("forget", [](const LibraryCode& loaded) {
        return reinterpret_cast<uintptr_t>(loaded.code().forget);
      });
  py::class_<DeviceLibrary, std::shared_ptr<DeviceLibrary>>(
      module, "DeviceLibrary", "Library of a vendor that loads the code of a device.")
      .def(py::init([](const std::string& path) {
             const py::gil_scoped_release without_gil;
             return std::make_shared<DeviceLibrary>(
                 path, [](const char* name) { return address_of_symbol(name); });
           }),
           py::arg("path"))
      .def_property_readonly("name", &DeviceLibrary::name)
      .def_property_readonly("features", &DeviceLibrary::features)
      .def("load", &load, py::arg("object_code"), py::arg("entry"), py::arg("workspace"),
           py::arg("fault"), py::arg("packs"));
  module.def("add_events_to_profiler", &add_events_to_profiler);
  py::class_<DeviceEventRecording, std::shared_ptr<DeviceEventRecording>>(
      module, "DeviceEventRecording", "Recording of the events of devices while it lives.")
      .def(py::init<>())
      .def("take", [](DeviceEventRecording& recording) {
        py::list events;
        for (const auto& event : recording.take())
          events.append(py::make_tuple(event.stream, event.name, event.begin, event.end));
        return events;
      });
  module.def("set_python_devices", &set_functions, py::arg("features"), py::arg("load"));
}

} // namespace torchmdla
