// A compiler of one's own behind the lazy device, in C++: this one runs graphs by PyTorch's
// interpreter and says how many.
//
//   from torch.utils.cpp_extension import load
//   from torchmdla import lazy
//   built = load("lazy_backend", "lazy_backend.cpp", extra_include_paths=[lazy.include_path()])
//   lazy.initialize()
//   lazy.set_backend(built.make())
#include <torch/csrc/jit/runtime/interpreter.h>
#include <torch/extension.h>
#include <torchmdla/lazy_backend.h>

#include <iostream>

namespace {

class Interpreted : public torchmdla::LazyProgram {
public:
  explicit Interpreted(const std::shared_ptr<torch::jit::Graph>& graph) : code_(graph, "graph") {}

  std::vector<c10::IValue> run(std::vector<c10::IValue> inputs) override {
    torch::jit::InterpreterState(code_).run(inputs);
    return inputs; // the stack, which holds the outputs now
  }

private:
  const torch::jit::Code code_;
};

class Interpreter : public torchmdla::LazyBackend {
public:
  std::shared_ptr<torchmdla::LazyProgram>
  compile(const std::shared_ptr<torch::jit::Graph>& graph) override {
    std::cout << "graph " << ++graphs_ << std::endl;
    return std::make_shared<Interpreted>(graph);
  }

private:
  int graphs_ = 0;
};

using Held = std::shared_ptr<torchmdla::LazyBackend>;

py::capsule make() {
  auto held = std::make_unique<Held>(std::make_shared<Interpreter>());
  return py::capsule(held.release(), torchmdla::lazy_backend_capsule, [](PyObject* capsule) {
    delete static_cast<Held*>(PyCapsule_GetPointer(capsule, torchmdla::lazy_backend_capsule));
  });
}

} // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def("make", &make);
}
