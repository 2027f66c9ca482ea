// `torchmdla._C.SplitProgram`: a program whose parts run on several devices.

#include "runtime/split_program.h"
#include "bindings.h"

#include <pybind11/stl.h>

#include <memory>
#include <tuple>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace torchmdla {

namespace {

// Exponents and coefficient of each term of a number of bytes.
using Terms = std::vector<std::pair<std::vector<int64_t>, int64_t>>;
// Device; addresses of entry, workspace function, fault, context and wait; workspace bytes, values,
// number of results, packs, first kernel, whether it is a kernel, transfers, their bytes.
using PartEntry = std::tuple<std::string, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t,
                             int64_t, std::vector<std::pair<bool, size_t>>, size_t,
                             std::vector<size_t>, size_t, bool, int64_t, Terms>;

Polynomial polynomial(const Terms& terms) {
  Polynomial result;
  for (const auto& [exponents, factor] : terms)
    result.terms.push_back({exponents, factor});
  return result;
}

SplitProgram::Part part_of(const PartEntry& fields) {
  const auto& [device, entry, workspace, fault, context, wait, workspace_bytes, values, results,
               packs, first_kernel, is_kernel, transfers, bytes] = fields;
  SplitProgram::Part part{.device = device,
                          .entry = reinterpret_cast<Entry>(entry),
                          .values = {},
                          .packs = packs,
                          .workspace_bytes = workspace_bytes,
                          .workspace = reinterpret_cast<SplitProgram::Workspace>(workspace),
                          .fault = reinterpret_cast<SplitProgram::Fault>(fault),
                          .context = reinterpret_cast<void*>(context),
                          .wait = reinterpret_cast<SplitProgram::Wait>(wait),
                          .results = results,
                          .first_kernel = first_kernel,
                          .is_kernel = is_kernel,
                          .transfers = transfers,
                          .bytes = polynomial(bytes)};
  for (const auto& [is_intermediate, index] : values)
    part.values.push_back({is_intermediate, index});
  return part;
}

std::unique_ptr<SplitProgram> make_split_program(const std::vector<PartEntry>& entries,
                                                 const std::vector<Terms>& slot_terms,
                                                 size_t symbols) {
  std::vector<SplitProgram::Part> parts;
  for (const auto& entry : entries)
    parts.push_back(part_of(entry));
  std::vector<Polynomial> slots;
  for (const auto& terms : slot_terms)
    slots.push_back(polynomial(terms));
  return std::make_unique<SplitProgram>(std::move(parts), std::move(slots), symbols);
}

} // namespace

void bind_split_program(py::module& module) {
  py::class_<SplitProgram>(module, "SplitProgram",
                           "Program whose parts run on several devices, in one entry.")
      .def(py::init(&make_split_program), py::arg("parts"), py::arg("slots"), py::arg("symbols"))
      .def_property_readonly(
          "address",
          [](const SplitProgram& program) { return reinterpret_cast<uintptr_t>(&program); })
      .def_property_readonly_static(
          "entry",
          [](const py::object&) { return reinterpret_cast<uintptr_t>(&SplitProgram::entry); })
      .def_property_readonly_static("fault", [](const py::object&) {
        return reinterpret_cast<uintptr_t>(&SplitProgram::fault);
      });
  module.def("device_counts", [] {
    py::dict result;
    for (const auto& [device, counts] : device_counts())
      result[py::str(device)] = py::make_tuple(counts.parts, counts.transfers, counts.bytes);
    return result;
  });
}

} // namespace torchmdla
