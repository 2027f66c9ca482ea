// Groups whose subgraphs are Python objects: `torchmdla._C.Group`.
#pragma once

#include "group/subgraph.h"
#include "python/python_objects.h"

#include <memory>

namespace torchmdla {

// A subgraph that is a Python object with these methods. `run(*inputs)` returns a sequence of
// results. `run_and_record(*inputs)` returns the results and a dictionary of recorded values.
// `time_nodes(*inputs)` returns the seconds of each node; it may be missing.
// `divide(left_out, parameters)` returns another `run` or None. `structure(device, parameters)`
// returns 32 bytes or None. `constant(node)` returns a constant.
class PythonSubgraph : public Subgraph {
public:
  explicit PythonSubgraph(const pybind11::object& object) : object_(own_reference(object)) {}

  // Return the Python object. The GIL must be held.
  pybind11::object object() const { return borrow_reference(object_); }

  void run(torch::jit::Stack& stack) override;
  Record run_and_record(torch::jit::Stack& stack) override;
  std::vector<double> time_nodes(torch::jit::Stack& stack) override;
  // Return false: operators that write are outside of groups.
  bool writes_inputs() const override { return false; }
  // Return false: PyTorch's autograd records the ops of `run`.
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

// Return the value as a Python object, a new reference. The GIL must be held.
PyObject* object_of(c10::IValue value);

// Return the values as Python objects. The GIL must be held.
pybind11::list to_python(c10::ArrayRef<c10::IValue> values);

// Return the graph of a TorchScript group, or the Python object of a Python group. The GIL must be
// held.
pybind11::object to_python(const Subgraph& subgraph);

// Add the type to the module.
void bind_group(pybind11::module& module);

} // namespace torchmdla
