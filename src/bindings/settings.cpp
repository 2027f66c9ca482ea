// Python bindings of devices, switches, counters and packs.

#include "package/settings.h"
#include "base/available_cpus.h"
#include "base/forks.h"
#include "base/host_features.h"
#include "base/open_file.h"
#include "bindings.h"
#include "fusion/device_table.h"
#include "fusion/fusion_pass.h"
#include "fusion/graph_values.h"
#include "group/compilation_group.h"
#include "group/group_report.h"
#include "group/memory_limit.h"
#include "group/profiling.h"
#include "group/speed_check.h"
#include "group/statistics.h"
#include "package/archive.h"
#include "package/mapped_weights.h"
#include "package/package.h"
#include "package/processor.h"
#include "package/public_keys.h"
#include "package/signature.h"
#include "python/python_objects.h"
#include "runtime/kernel_times.h"
#include "runtime/memory.h"
#include "runtime/packed.h"
#include "runtime/thread_quota.h"

#include <ATen/Parallel.h>
#include <pybind11/stl.h>
#include <torch/csrc/jit/python/pybind.h>
#include <torch/csrc/utils/pybind.h>
#include <torchmdla/torchmdla.h>

#include <chrono>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace torchmdla {

namespace {

const std::unordered_map<std::string, OpKind> op_kinds{{"compute", OpKind::compute},
                                                       {"cheap", OpKind::cheap},
                                                       {"view", OpKind::view},
                                                       {"shape", OpKind::shape},
                                                       {"item", OpKind::item}};

using OpEntry = std::tuple<std::string, std::string, std::string, py::dict>;

void add_device(const std::string& device, const std::vector<OpEntry>& ops,
                const std::vector<at::ScalarType>& dtypes, bool is_asynchronous) {
  auto table = std::make_shared<DeviceTable>();
  table->device = device;
  table->is_asynchronous = is_asynchronous;
  table->dtypes.insert(dtypes.begin(), dtypes.end());
  for (const auto& [name, overload, kind, where] : ops) {
    OpRule rule{op_kinds.at(kind), {}};
    for (const auto& [argument, value] : where)
      rule.where.emplace_back(argument.cast<std::string>(), to_ivalue(value));
    table->ops.emplace(c10::OperatorName(name, overload), std::move(rule));
  }
  add_device_table(std::move(table));
}

// Drop the packs of these tensors, or of all tensors. A tensor without storage does not have packs.
void refresh(const std::optional<std::vector<at::Tensor>>& tensors) {
  std::unordered_set<const c10::StorageImpl*> storages;
  for (const auto& tensor : tensors.value_or(std::vector<at::Tensor>()))
    if (tensor.has_storage()) storages.insert(tensor.storage().unsafeGetStorageImpl());
  const py::gil_scoped_release without_gil;
  refresh_packs([&](const ParameterState& parameter) {
    return !tensors || storages.count(parameter.storage()) != 0;
  });
}

std::span<const std::byte> bytes_of(const py::bytes& data) {
  return std::as_bytes(std::span(std::string_view(data)));
}

// Raise ValueError unless the signature was made with one of the keys in the files.
void check_signature_by(const std::vector<std::string>& key_paths, const py::bytes& record,
                        const std::string& label, const std::string& name,
                        const py::bytes& content) {
  try {
    check_signature(bytes_of(record), {label, name}, bytes_of(content),
                    read_public_keys(key_paths));
  } catch (const std::runtime_error& problem) {
    throw py::value_error(problem.what());
  }
}

// Lifetime of a program that is not a TorchScript module. The object lives as long as the program.
struct ProgramLifetime {};

// Add the package that consists of `records` to those that groups search. The program passed the
// bytes, so it decides whether to trust them.
bool take_package_records(std::unordered_map<std::string, std::string> records,
                          const std::string& name,
                          const std::shared_ptr<ProgramLifetime>& program) {
  const auto owner = std::make_shared<const decltype(records)>(std::move(records));
  const auto read = [&](const std::string& record) -> std::optional<FileRecord> {
    const auto found = owner->find(record);
    if (found == owner->end()) return std::nullopt;
    return FileRecord{std::as_bytes(std::span(found->second)), owner};
  };
  return load_package({read, /*map=*/nullptr, name, /*file=*/nullptr, program});
}

py::dict statistics_dict() {
  py::dict result;
  result["groups"] = statistics().groups.load();
  result["specialisations"] = statistics().specialisations.load();
  result["training_calls"] = statistics().training_calls.load();
  result["dynamic"] = statistics().dynamic.load();
  result["not_dynamic"] = statistics().not_dynamic.counts();
  result["not_trained"] = statistics().not_trained.counts();
  result["fallbacks"] = statistics().fallbacks.counts();
  result["packages"] = statistics().packages.loaded.counts();
  result["packaged"] = statistics().packages.specialisations.load();
  result["refused"] = statistics().packages.refused.counts();
  result["unpacked"] = statistics().memory.unpacked.load();
  result["evicted"] = statistics().memory.evicted.load();
  result["over_limit"] = statistics().memory.over_limit.load();
  result["speed_checks"] = statistics().speed.checks.load();
  result["speed_check_seconds"] = statistics().speed.seconds.load();
  result["replaced"] = statistics().speed.replaced.load();
  const auto calls = call_totals();
  result["compiled_calls"] = calls.compiled;
  result["recorded_calls"] = calls.recorded;
  return result;
}

} // namespace

void bind_settings(py::module& module) {
  module.def("add_device", &add_device, py::arg("device"), py::arg("ops"), py::arg("dtypes"),
             py::arg("is_asynchronous") = false);
  module.def("use_device", &use_device_table, py::arg("device"));
  module.def("set_enabled", [](bool on) {
    settings().enabled = on;
    leave_out_profiling(on);
  });
  module.def("is_enabled", [] { return settings().enabled.load(); });
  module.def("set_strict", [](bool on) { settings().strict = on; });
  module.def("is_strict", [] { return settings().strict.load(); });
  module.def("set_background", [](bool on) { settings().background = on; });
  module.def("is_background", [] { return settings().background.load(); });
  module.def("set_dynamic", [](bool on) { settings().dynamic = on; });
  module.def("set_packages", [](bool on) { settings().packages = on; });
  module.def("set_lone_groups", [](bool on) { settings().lone_groups = on; });
  module.def("processor_identity", &processor_identity);
  module.def("host_features", &host_features);
  module.def("available_cpus", &available_cpus);
  module.def("kernel_threads", [] {
    limit_to_quota();
    return at::get_num_threads();
  });
  module.def("converts_f16", &converts_f16, py::arg("processor"));
  module.def("set_processor", &set_processor, py::arg("processor"));
  module.def("set_demanded_keys", &set_required_keys, py::arg("paths"));
  module.def("are_signatures_required", &are_signatures_required);
  module.def("check_signature", &check_signature_by, py::arg("key_paths"), py::arg("record"),
             py::arg("label"), py::arg("name"), py::arg("content"));
  py::class_<ProgramLifetime, std::shared_ptr<ProgramLifetime>>(module, "ProgramLifetime")
      .def(py::init<>());
  module.def(
      "take_package",
      [](const std::string& path, const std::shared_ptr<ProgramLifetime>& program) {
        return take_package_of(path, program);
      },
      py::arg("path"), py::arg("program"), py::call_guard<py::gil_scoped_release>());
  module.def(
      "take_package_records",
      [](const std::unordered_map<std::string, py::bytes>& records, const std::string& name,
         const std::shared_ptr<ProgramLifetime>& program) {
        std::unordered_map<std::string, std::string> copies(records.begin(), records.end());
        const py::gil_scoped_release without_gil;
        return take_package_records(std::move(copies), name, program);
      },
      py::arg("records"), py::arg("name"), py::arg("program"));
  module.def("take_loaded_package", &add_package_of_module, py::arg("path"), py::arg("module"),
             py::call_guard<py::gil_scoped_release>());
  module.def("load_with_package", &load_with_package, py::arg("path"), py::arg("device"),
             py::call_guard<py::gil_scoped_release>());
  module.def("return_freed_memory", &return_freed_memory, py::call_guard<py::gil_scoped_release>());
  py::class_<PrivateMapping, MappedWeights>(module, "MappedWeights")
      .def("drop_unwritten_pages", &PrivateMapping::drop_unwritten_pages,
           py::call_guard<py::gil_scoped_release>());
  module.def(
      "map_weights",
      [](const torch::jit::Module& loaded, const std::string& path) {
        return map_weights(loaded, OpenFile(path));
      },
      py::arg("module"), py::arg("path"), py::call_guard<py::gil_scoped_release>());
  module.def("map_constants", &map_constants, py::arg("module"), py::arg("descriptor"),
             py::call_guard<py::gil_scoped_release>());
  module.def(
      "prepare", [](const torch::jit::Module& loaded) { prepare(loaded); }, py::arg("module"),
      py::call_guard<py::gil_scoped_release>());
  module.def("keep_inputs", [](bool on) {
    const py::gil_scoped_release without_gil;
    keep_inputs(on);
  });
  module.def(
      "observe_kernels",
      [](bool times, bool ranges) {
        kernel_observation().times = times;
        kernel_observation().ranges = ranges;
      },
      py::arg("times"), py::arg("ranges"));
  module.def("set_max_specialisations",
             [](int64_t most) { settings().max_specialisations = most; });
  module.def("refresh", &refresh, py::arg("tensors"));
  module.def(
      "drop_dead",
      [] {
        drop_dead_packs();
        drop_dead_packages();
      },
      py::call_guard<py::gil_scoped_release>());
  module.def("optimised_without_device",
             [] { return statistics().optimised_without_device.load(); });
  module.def("pass_stages", &pass_stages);
  module.def("values_visited", &values_visited);
  module.def("fail_pass_stage", &fail_pass_stage, py::arg("stage"));
  module.def("statistics", &statistics_dict);
  module.def("reset_statistics", [] { statistics().reset(); });
  module.def("enter_alone", &enter_alone);
  module.def("leave_alone", &leave_alone);
  module.def("memory_use", [] {
    return py::dict(py::arg("packed") = memory_use().packed.load(),
                    py::arg("workspace") = memory_use().workspace.load(),
                    py::arg("code") = memory_use().code.load());
  });
  module.def(
      "set_memory_limit",
      [](std::optional<int64_t> limit, double keep_seconds) {
        set_memory_limit(limit, KeepTime(keep_seconds));
      },
      py::arg("limit"), py::arg("keep_seconds") = usual_keep_time.count(),
      py::call_guard<py::gil_scoped_release>());
  module.def("memory_limit", &memory_limit);
  module.def("set_check_speed", &set_check_speed, py::arg("on"),
             py::arg("budget") = usual_speed_budget);
  module.def("is_check_speed_on", &is_check_speed_on);
  module.def(
      "slow_down_kernels",
      [](const std::string& op, double seconds) {
        slow_down_kernels(op, std::chrono::duration_cast<std::chrono::nanoseconds>(
                                  std::chrono::duration<double>(seconds)));
      },
      py::arg("op"), py::arg("seconds"));
}

} // namespace torchmdla
