// Interface of the compiled forward and backward of a group.
#pragma once

#include <torch/csrc/autograd/variable.h>

#include <ATen/core/ivalue.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace torchmdla {

// Forward and backward programs for inputs of one signature. Tensors of lists among the group's
// inputs count as inputs of their own. Any thread may call the functions, without the GIL.
class TrainingProgram {
public:
  // Origin of a value that the backward needs: an input, or a result of `forward`.
  struct Saved {
    bool is_input;
    size_t index;
  };

  struct Layout {
    std::vector<int64_t> sizes, strides;
  };

  TrainingProgram() = default;
  TrainingProgram(const TrainingProgram&) = delete;
  TrainingProgram& operator=(const TrainingProgram&) = delete;
  virtual ~TrainingProgram() = default;

  // Return the new values of `written`, the outputs that are tensors, and values for the backward.
  virtual torch::autograd::variable_list forward(torch::autograd::variable_list inputs) const = 0;

  // Return a gradient or an undefined tensor for each input, from the saved values, followed by the
  // gradients of the outputs that the program was compiled for.
  virtual torch::autograd::variable_list backward(torch::autograd::variable_list values) const = 0;

  std::vector<std::optional<c10::IValue>> outputs; // those that are not tensors
  std::vector<size_t> written;                     // inputs that the group writes to
  std::vector<Saved> saved;
  std::vector<Layout> gradients; // layouts that `backward` requires of the outputs' gradients
  bool is_random = false;        // whether the forward draws random numbers
};

} // namespace torchmdla
