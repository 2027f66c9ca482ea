// The extension `torchmdla._C`.

#include "base/python_lock.h"
#include "bindings.h"
#include "python_group.h"
#include "script_region.h"

namespace torchmdla {

namespace {

void* release_gil() {
  return Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr;
}

void take_gil(void* released) {
  PyEval_RestoreThread(static_cast<PyThreadState*>(released));
}

} // namespace

PYBIND11_MODULE(_C, module) {
  module.doc() = "Python's side of libtorchmdla, and the frontends that are Python's.";
  set_python_lock({release_gil, take_gil});
  bind_image(module);
  bind_executable(module);
  bind_split_program(module);
  bind_devices(module);
  bind_group(module);
  bind_script_region(module);
  bind_compiler(module);
  bind_reports(module);
  bind_settings(module);
  bind_lazy(module);
  acap::bind(module);
}

} // namespace torchmdla
