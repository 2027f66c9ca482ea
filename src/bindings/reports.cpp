// Reports on groups, as Python dictionaries.

#include "bindings.h"
#include "group/group_report.h"
#include "group/ungrouped.h"
#include "python_group.h"

#include <pybind11/stl.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include <cmath>
#include <optional>
#include <set>
#include <vector>

namespace py = pybind11;

namespace torchmdla {

namespace {

py::dict to_python(const SpeedKey& key, const SpeedFinding& finding) {
  return py::dict(py::arg("threads") = key.threads,
                  py::arg("compiled_seconds") = finding.seconds.compiled,
                  py::arg("eager_seconds") = finding.seconds.eager,
                  py::arg("choice") = speed_choices[static_cast<size_t>(finding.choice)],
                  py::arg("left_out") = finding.excluded_nodes);
}

py::dict to_python(const SpecialisationReport& report) {
  py::dict result;
  result["is_dynamic"] = report.pattern.has_value();
  result["executable"] = std::const_pointer_cast<Executable>(report.executable);
  result["failure"] = report.failure;
  result["signature"] = std::vector<int64_t>(report.signature.begin(), report.signature.end());
  result["symbols"] =
      report.pattern ? py::object(py::make_tuple(report.pattern->symbols, report.pattern->places))
                     : py::none();
  result["left_out"] = py::cast(report.excluded_nodes);
  py::list speed;
  for (const auto& [key, finding] : report.speed)
    if (!std::isinf(finding.seconds.eager)) speed.append(to_python(key, finding));
  result["speed"] = speed;
  return result;
}

// Return the structure as bytes, or None.
py::object structure(torch::jit::Graph& graph, const std::string& device,
                     const std::vector<int64_t>& parameters) {
  const auto structure = structure_of(graph, device, parameters);
  if (!structure) return py::none();
  return py::bytes(reinterpret_cast<const char*>(structure->data()), structure->size());
}

py::dict to_python(const GroupReport& report) {
  py::list specialisations, inputs;
  for (const auto& specialisation : report.specialisations)
    specialisations.append(to_python(specialisation));
  for (const auto& input : report.inputs)
    inputs.append(torch::jit::toPyObject(input));
  py::dict result;
  result["number"] = report.number;
  result["name"] = report.name;
  result["device"] = report.device;
  result["subgraph"] = to_python(*report.subgraph);
  result["parameters"] = report.parameters;
  result["compiled_calls"] = report.compiled_calls;
  result["recorded_calls"] = report.recorded_calls;
  result["training_calls"] = report.training_calls;
  result["fallbacks"] = report.fallbacks;
  result["not_dynamic"] = report.not_dynamic;
  result["specialisations"] = specialisations;
  result["inputs"] = inputs;
  return result;
}

py::list groups(const std::optional<std::set<int64_t>>& numbers) {
  std::vector<GroupReport> reports;
  {
    const py::gil_scoped_release without_gil;
    reports = group_reports(numbers);
  }
  py::list result;
  for (const auto& report : reports)
    result.append(to_python(report));
  return result;
}

py::dict counts_of_groups() {
  py::dict result;
  for (const auto& group : group_counts())
    result[py::int_(group.number)] =
        py::make_tuple(group.calls, group.training_calls, group.specialisations);
  return result;
}

py::list ungrouped() {
  py::list result;
  for (const auto& [entry, count] : ungrouped_operators())
    result.append(py::make_tuple(entry.op, entry.reason, entry.source_ranges, count));
  return result;
}

} // namespace

void bind_reports(py::module& module) {
  module.def("groups", &groups, py::arg("numbers") = py::none(),
             "What there is to say of each group that lives, or of those with these numbers.");
  module.def("group_counts", &counts_of_groups,
             "Calls, training calls and specialisations of each group that lives, by number.");
  module.def("ungrouped", &ungrouped,
             "Operators outside of groups, in graphs of TorchScript and of lazy devices.");
  module.def("structure", &structure, py::arg("subgraph"), py::arg("device"), py::arg("parameters"),
             "By what packages know a group of TorchScript: 32 bytes, or None where they cannot.");
  module.def(
      "source_ranges", &source_ranges, py::arg("node"),
      "Return the location of a node, and those of the calls that it is inlined from, outwards.");
}

} // namespace torchmdla
