// `torchmdla._C.Executable`: an artifact's addresses with the bindings of its arguments and
// results.

#include "runtime/executable.h"
#include "bindings.h"
#include "python/python_objects.h"
#include "runtime/fingerprint.h"
#include "runtime/random_masks.h"

#include <pybind11/stl.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include <bit>
#include <optional>
#include <unordered_map>
#include <vector>

namespace py = pybind11;

namespace torchmdla {

namespace {

// Owner of code that is a Python object.
struct PythonOwner : CodeOwner {
  explicit PythonOwner(const py::object& object) : object(own_reference(object)) {}
  const std::shared_ptr<PyObject> object;
};

InputBinding input_binding(const std::string& source, const py::object& from) {
  using Source = InputBinding::Source;
  if (source == "constant") return {Source::constant, 0, std::nullopt, from.cast<at::Tensor>()};
  static const std::unordered_map<std::string, Source> sources{{"dense", Source::dense},
                                                               {"contiguous", Source::contiguous},
                                                               {"scalar", Source::scalar},
                                                               {"size", Source::size}};
  const auto entry = sources.find(source);
  TORCH_CHECK_VALUE(entry != sources.end(),
                    "an argument comes from \"dense\", \"contiguous\", "
                    "\"scalar\", \"size\" or \"constant\", not \"",
                    source, "\"");
  if (!py::isinstance<py::tuple>(from)) return {entry->second, from.cast<size_t>(), {}, {}};
  const auto [input, element] = from.cast<std::pair<size_t, size_t>>();
  return {entry->second, input, element, {}};
}

// Pairs of the exponents and the coefficient of a term.
using Terms = std::vector<std::pair<std::vector<int64_t>, int64_t>>;

Polynomial polynomial(const Terms& terms) {
  Polynomial polynomial;
  for (const auto& [exponents, factor] : terms)
    polynomial.terms.push_back({exponents, factor});
  return polynomial;
}

// Split sizes or strides, which are integers, or terms if they vary.
void split_numbers(const py::sequence& mixed, std::vector<int64_t>& numbers, Varying& varying) {
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
  using Quantised = std::optional<std::pair<double, int64_t>>;
  const auto [result, dtype, sizes, strides, quantised] =
      output.cast<std::tuple<size_t, at::ScalarType, py::sequence, py::sequence, Quantised>>();
  OutputTensor tensor{result, dtype, {}, {}, {}, {}, {}};
  if (quantised) tensor.quantisation = Quantisation{quantised->first, quantised->second};
  split_numbers(sizes, tensor.sizes, tensor.varying_sizes);
  split_numbers(strides, tensor.strides, tensor.varying_strides);
  return tensor;
}

using KindAndSource = std::pair<std::string, py::object>;
using PackEntry =
    std::tuple<uintptr_t, std::string, std::vector<size_t>, int64_t, uintptr_t, uintptr_t>;

std::shared_ptr<Executable>
make_executable(uintptr_t entry, const std::vector<PackEntry>& packs, int64_t workspace_bytes,
                const py::object& owner, const std::vector<KindAndSource>& inputs,
                const std::vector<KindAndSource>& outputs, const std::vector<size_t>& unversioned,
                uintptr_t workspace, uintptr_t fault, std::shared_ptr<KernelTimes> times,
                int64_t program_bytes, const std::vector<std::vector<size_t>>& kernel_nodes,
                bool competes_with_eager, const std::vector<std::pair<size_t, size_t>>& in_place,
                const std::vector<std::pair<size_t, size_t>>& releases, uintptr_t context,
                uintptr_t wait, uintptr_t forget) {
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
                    std::make_shared<PythonOwner>(owner),
                    reinterpret_cast<const char* (*)()>(fault),
                    std::move(times),
                    program_bytes,
                    kernel_nodes,
                    competes_with_eager,
                    reinterpret_cast<void*>(context),
                    {reinterpret_cast<int32_t (*)(void*)>(wait),
                     reinterpret_cast<void (*)(void*)>(forget),
                     reinterpret_cast<const char* (*)()>(fault)}};
  for (const auto& [function, recipe, arguments, bytes, release, pack_context] : packs)
    code.packs.push_back({reinterpret_cast<Entry>(function), recipe, arguments, bytes,
                          reinterpret_cast<void (*)(void*)>(release), nullptr,
                          reinterpret_cast<void*>(pack_context)});
  std::vector<InPlaceResult> written;
  for (const auto& [result, argument] : in_place)
    written.push_back({result, argument});
  std::vector<ArgumentRelease> released;
  for (const auto& [argument, kernel] : releases)
    released.push_back({argument, kernel});
  return std::make_shared<Executable>(std::move(code), std::move(input_bindings),
                                      std::move(output_bindings), written, released);
}

// Call an executable outside of any group. There is no fallback if the code fails.
py::tuple call(const Executable& executable, const std::vector<at::Tensor>& inputs) {
  torch::jit::Stack stack(inputs.begin(), inputs.end());
  {
    const py::gil_scoped_release without_gil;
    TORCH_CHECK(executable.run(stack, inputs.size(), {}),
                "the compiled code reported an error: PyTorch would raise one for these inputs");
  }
  py::tuple results(stack.size());
  for (size_t i = 0; i < stack.size(); ++i)
    results[i] = torch::jit::toPyObject(std::move(stack[i]));
  return results;
}

// Convert the sums to the form that torchmdla.report.explanation reads.
py::dict to_python(const KernelTimes::Sums& sums) {
  const auto pair = [](const KernelTimes::Kernel& kernel) {
    return py::make_tuple(kernel.sum, kernel.least);
  };
  py::list kernels;
  for (const auto& kernel : sums.kernels)
    kernels.append(pair(kernel));
  py::dict result;
  result["calls"] = sums.calls;
  result["entry"] = pair(sums.entry);
  result["kernels"] = kernels;
  result["symbols"] = sums.symbols;
  return result;
}

void bind_kernel_times(py::module& module) {
  py::class_<KernelTimes, std::shared_ptr<KernelTimes>>(
      module, "KernelTimes",
      "Nanoseconds that the calls of an executable took, while observe_kernels asks for times.")
      .def(py::init<std::vector<std::string>>(), py::arg("names"))
      .def_property_readonly("names", &KernelTimes::names)
      .def("sums", [](const KernelTimes& times) { return to_python(times.sums()); })
      .def("reset", &KernelTimes::reset);
}

} // namespace

void bind_executable(py::module& module) {
  bind_kernel_times(module);
  module.def(
      "draw_mask",
      [](const std::vector<int64_t>& sizes, double probability) {
        const py::gil_scoped_release without_gil;
        return draw_mask(sizes, probability);
      },
      py::arg("sizes"), py::arg("probability"));
  module.def(
      "content_hash",
      [](const at::Tensor& tensor) {
        TORCH_CHECK_VALUE(tensor.is_non_overlapping_and_dense(), "a dense tensor has a hash");
        return std::bit_cast<int64_t>(content_hash(tensor.const_data_ptr(), tensor.nbytes()));
      },
      py::arg("tensor"));
  py::class_<Executable, std::shared_ptr<Executable>>(
      module, "Executable", "Compiled code bound to the inputs and outputs of a group.")
      .def(py::init(&make_executable), py::arg("entry"), py::arg("packs"),
           py::arg("workspace_bytes"), py::arg("owner"), py::arg("inputs"), py::arg("outputs"),
           py::arg("unversioned") = std::vector<size_t>(), py::arg("workspace") = 0,
           py::arg("fault") = 0, py::arg("times") = std::shared_ptr<KernelTimes>(),
           py::arg("program_bytes") = 0,
           py::arg("kernel_nodes") = std::vector<std::vector<size_t>>(),
           py::arg("competes_with_eager") = false,
           py::arg("in_place") = std::vector<std::pair<size_t, size_t>>(),
           py::arg("releases") = std::vector<std::pair<size_t, size_t>>(), py::arg("context") = 0,
           py::arg("wait") = 0, py::arg("forget") = 0)
      .def("__call__", &call, py::arg("inputs"))
      .def_property_readonly("times", &Executable::times)
      .def_property_readonly("owner", [](const Executable& executable) {
        const auto* owner = dynamic_cast<const PythonOwner*>(&executable.owner());
        return owner ? borrow_reference(owner->object) : py::none();
      });
}

} // namespace torchmdla
