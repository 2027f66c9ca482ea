#include "python_objects.h"

#include "base/forks.h"

#include <torch/csrc/Device.h>
#include <torch/csrc/jit/runtime/interpreter.h>
#include <torch/csrc/utils/pybind.h>

#include <mutex>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace torchmdla {

namespace {

void release(PyObject* object) {
  if (!Py_IsInitialized()) return;
  py::gil_scoped_acquire gil;
  Py_DECREF(object);
}

// Count of errors that are being passed. PyTorch's flag is global to the process, and threads may
// pass errors concurrently.
struct Passing {
  std::mutex mutex;
  int count = 0;
  bool flag_before = false;
};

Passing& passing() {
  static Passing instance;
  return instance;
}

} // namespace

std::shared_ptr<PyObject> own_reference(const py::object& object) {
  return {py::object(object).release().ptr(), release};
}

PassingError::PassingError() {
  persist();
  const ForkSafeLock guard(passing().mutex);
  if (passing().count++ == 0)
    passing().flag_before = std::exchange(FLAGS_torch_jit_enable_rethrow_caught_exception, true);
}

PassingError::~PassingError() {
  const ForkSafeLock guard(passing().mutex);
  if (--passing().count == 0)
    FLAGS_torch_jit_enable_rethrow_caught_exception = passing().flag_before;
}

c10::IValue to_ivalue(const py::handle& value) {
  if (value.is_none()) return {};
  if (py::isinstance<py::bool_>(value)) return value.cast<bool>();
  if (py::isinstance<py::int_>(value)) return value.cast<int64_t>();
  if (py::isinstance<py::float_>(value)) return value.cast<double>();
  if (py::isinstance<py::str>(value)) return value.cast<std::string>();
  if (THPDevice_Check(value.ptr())) return value.cast<at::Device>();
  TORCH_CHECK_TYPE(py::isinstance<py::list>(value), "torchmdla: no constant of a graph is a ",
                   std::string(py::str(py::type::of(value))));
  const auto list = py::reinterpret_borrow<py::list>(value);
  if (!list.empty() && py::isinstance<py::float_>(list[0])) return list.cast<std::vector<double>>();
  if (!list.empty() && py::isinstance<py::bool_>(list[0])) {
    c10::List<bool> flags;
    for (const auto& flag : list)
      flags.push_back(flag.cast<bool>());
    return flags;
  }
  return list.cast<std::vector<int64_t>>();
}

} // namespace torchmdla
