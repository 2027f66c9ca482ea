// Python bindings of the acap device: `torchmdla._C.acap`.

#include "acap/autocast.h"
#include "acap/device.h"
#include "acap/jit_graph.h"
#include "acap/kernels.h"
#include "acap/recording.h"
#include "acap/tensor.h"
#include "base/forks.h"
#include "bindings.h"

#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/jit/python/pybind.h>

#include <mutex>

namespace torchmdla::acap {

namespace py = pybind11;

namespace {

void initialize(const std::string& device) {
  static std::once_flag once;
  std::call_once(once, [&] {
    run_on_device(device);
    register_device();
    register_kernels();
    register_autocast();
  });
}

void check_is_acap(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(is_acap(tensor), "a tensor on the acap device is needed, not one on ",
                    tensor.device());
}

// Do the same as `parameter.data = data`, which PyTorch rejects if the device type changes.
void set_data(const at::Tensor& parameter, const at::Tensor& data) {
  if (auto* meta = torch::autograd::impl::get_autograd_meta(parameter)) {
    const ForkSafeLock guard(meta->mutex_);
    meta->grad_accumulator_.reset(); // it expects gradients of the old device
  }
  parameter.unsafeGetTensorImpl()->shallow_copy_from(data.getIntrusivePtr());
}

} // namespace

void bind(py::module& module) {
  auto acap = module.def_submodule("acap", "The acap device.");
  const auto without_gil = py::call_guard<py::gil_scoped_release>();
  acap.def("initialize", &initialize, py::arg("device"), without_gil);
  acap.def("mark_step", &mark_step, without_gil);
  acap.def("pending_nodes", &pending_nodes);
  acap.def("set_most_pending_nodes", &set_most_pending_nodes, py::arg("most"));
  acap.def("set_data", &set_data, py::arg("parameter"), py::arg("data"), without_gil);
  acap.def(
      "is_pending",
      [](const at::Tensor& tensor) {
        check_is_acap(tensor);
        const ForkSafeLock guard(graph_mutex());
        const auto& value = Storage::of(tensor).value();
        return value && value->node != nullptr;
      },
      py::arg("tensor"), without_gil);
  acap.def(
      "pending_graph",
      [](const std::vector<at::Tensor>& tensors, bool argument_per_use) {
        std::vector<ValuePtr> values;
        for (const auto& tensor : tensors) {
          check_is_acap(tensor);
          values.push_back(value_of(tensor));
        }
        return describe(values, argument_per_use);
      },
      py::arg("tensors"), py::arg("argument_per_use"), without_gil);
}

} // namespace torchmdla::acap
