// The extension `torchmdla._C`.

#include "bindings.h"
#include "python_group.h"

namespace torchmdla {

PYBIND11_MODULE(_C, module) {
  module.doc() = "The C++ part of torchmdla: fusion pass, run function, device calls.";
  bind_image(module);
  bind_executable(module);
  bind_group(module);
  bind_compiler(module);
  bind_reports(module);
  bind_settings(module);
  bind_lazy(module);
  acap::bind(module);
}

} // namespace torchmdla
