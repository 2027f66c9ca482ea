// The way for C++ to put a compiler of its own behind the lazy device.
//
// Implement `torchmdla::LazyBackend` in an extension module, hand it over with `make_capsule`, and
// give the capsule to `torchmdla.lazy.set_backend`.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <memory>
#include <vector>

namespace torchmdla {

// One compiled graph.
class LazyProgram {
public:
  virtual ~LazyProgram() = default;

  // Takes a value for each input of the graph, CPU tensors and numbers, and returns one for each
  // output, CPU tensors, which must not share memory with anything that is written to later. Called
  // without the GIL, from any thread, several at a time. What it throws, the user gets.
  virtual std::vector<c10::IValue> run(std::vector<c10::IValue> inputs) = 0;
};

class LazyBackend {
public:
  virtual ~LazyBackend() = default;

  // `graph`: functional ATen calls in a flat block, every tensor typed with its dtype and sizes.
  // Called once for each graph, without the GIL. Null, or any exception: the graph runs as without
  // this backend.
  virtual std::shared_ptr<LazyProgram> compile(const std::shared_ptr<torch::jit::Graph>& graph) = 0;
};

// The name of the capsules that `torchmdla.lazy.set_backend` takes. They hold a
// `std::shared_ptr<LazyBackend>*`.
constexpr const char* lazy_backend_capsule = "torchmdla.LazyBackend";

} // namespace torchmdla
