// Programs of training steps that are Python functions.
#pragma once

#include "group/training_program.h"
#include "python/python_objects.h"

#include <memory>

namespace torchmdla {

// A torchmdla.capture.training.TrainingProgram.
class PythonTrainingProgram : public TrainingProgram {
public:
  // The GIL must be held.
  explicit PythonTrainingProgram(const pybind11::object& program);

  torch::autograd::variable_list forward(torch::autograd::variable_list inputs) const override;
  torch::autograd::variable_list backward(torch::autograd::variable_list values) const override;

private:
  const std::shared_ptr<PyObject> forward_, backward_;
};

} // namespace torchmdla
