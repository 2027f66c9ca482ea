// C++ interface for a custom compiler of the lazy device.
//
// Implement `torchmdla::LazyBackend` in an extension module, wrap it with `make_capsule`, and pass
// the capsule to `torchmdla.lazy.set_backend`.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <memory>
#include <vector>

namespace torchmdla {

// Compiled graph.
class LazyProgram {
public:
  virtual ~LazyProgram() = default;

  // Run the graph. `inputs` has one value for each input of the graph: a CPU tensor or a number.
  // Return one CPU tensor for each output. They must not share memory with anything that is written
  // later. It is called without the GIL, from any thread, and concurrently. Exceptions reach the
  // user.
  virtual std::vector<c10::IValue> run(std::vector<c10::IValue> inputs) = 0;
};

class LazyBackend {
public:
  virtual ~LazyBackend() = default;

  // Compile `graph`, which consists of functional ATen calls in a flat block. The type of every
  // tensor has its dtype and sizes. It is called once for each graph, without the GIL. If it
  // returns null or throws, the graph runs as it does without this backend.
  virtual std::shared_ptr<LazyProgram> compile(const std::shared_ptr<torch::jit::Graph>& graph) = 0;
};

// Name of the capsules that `torchmdla.lazy.set_backend` accepts. They contain a
// `std::shared_ptr<LazyBackend>*`.
constexpr const char* lazy_backend_capsule = "torchmdla.LazyBackend";

} // namespace torchmdla
