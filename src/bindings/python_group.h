// Groups whose subgraphs are in Python: `torchmdla._C.Group`.
#pragma once

#include "group/subgraph.h"
#include "python/python_objects.h"

#include <memory>

namespace torchmdla {

// A Python object with `run(*inputs)`, which returns a sequence of results,
// `run_and_record(*inputs)`, which returns the results and a dictionary of what was seen, and
// `divide(left_out, parameters)`, which returns another `run` or None, `structure(device,
// parameters)`, 32 bytes or None, and `constant(node)`.
class PythonSubgraph : public Subgraph {
public:
  explicit PythonSubgraph(const pybind11::object& object) : object_(hold(object)) {}

  // The GIL must be held.
  pybind11::object object() const { return borrow(object_); }

  void run(torch::jit::Stack& stack) override;
  Record run_and_record(torch::jit::Stack& stack) override;
  // PyTorch's autograd follows the ops of `run`.
  bool run_differentiable(torch::jit::Stack& stack) override { return false; }
  std::optional<size_t> num_outputs() const override { return std::nullopt; }
  std::optional<Structure> structure(const std::string& device,
                                     const std::vector<int64_t>& parameters) const override;
  at::Tensor constant(size_t node, std::optional<size_t> element) const override;
  bool conditions_hold(const Record& record) const override { return true; }
  Division divide(const std::vector<size_t>& left_out,
                  const std::vector<int64_t>& parameters) override;

private:
  const std::shared_ptr<PyObject> object_;
};

// The graph of a TorchScript group, or what a group of Python's was made of. The GIL must be held.
pybind11::object to_python(const Subgraph& subgraph);

// Adds the type to the module.
void bind_group(pybind11::module& module);

} // namespace torchmdla
