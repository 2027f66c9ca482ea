// `torchmdla._C.Image`: linked code in this process, and the functions that it may call.

#include "bindings.h"
#include "runtime/device_calls.h"
#include "runtime/load_image.h"

#include <pybind11/stl.h>

#include <unordered_map>

namespace py = pybind11;

namespace torchmdla {

namespace {

using Addresses = std::unordered_map<std::string, uintptr_t>;

std::shared_ptr<Image> image_of(const py::bytes& data, const Addresses& addresses) {
  const std::string_view bytes = data;
  const py::gil_scoped_release without_gil;
  return load_image(std::as_bytes(std::span(bytes)), [&](const std::string& name) -> void* {
    const auto known = addresses.find(name);
    return known != addresses.end() ? reinterpret_cast<void*>(known->second)
                                    : address_of_symbol(name);
  });
}

std::vector<std::string> names(const Image& image) {
  std::vector<std::string> names;
  for (const auto& symbol : image.symbols())
    names.push_back(symbol.name);
  return names;
}

} // namespace

void bind_image(py::module& module) {
  py::register_exception<ImageError>(module, "ImageError", PyExc_RuntimeError);
  py::class_<Image, std::shared_ptr<Image>>(module, "Image", "Linked code in this process.")
      .def(py::init(&image_of), py::arg("data"), py::arg("addresses") = Addresses())
      .def("symbol",
           [](const Image& image, const std::string& name) {
             return reinterpret_cast<uintptr_t>(image.symbol(name));
           })
      .def("names", &names);
  module.def("address_of_symbol", [](const std::string& name) {
    return reinterpret_cast<uintptr_t>(address_of_symbol(name));
  });
}

} // namespace torchmdla
