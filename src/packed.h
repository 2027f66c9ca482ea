// Buffers made from parameters once for every version of these: packed weights, folded statistics.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace torchmdla {

// A compiled function; the ABI stands in docs/architecture.md.
using Entry = int32_t (*)(void* const* buffers);

// How a packed buffer is made: from the executable's arguments `arguments`, by `function`. Buffers
// of equal recipes and parameters are the same.
struct Pack {
  Entry function;
  std::string recipe;
  std::vector<size_t> arguments;
  int64_t bytes;
};

// A parameter as it was when something was made of it.
class ParameterState {
public:
  explicit ParameterState(const at::Tensor& parameter);

  // Whether `parameter` is the same tensor with the same content. Never true for inference tensors,
  // which PyTorch does not version.
  bool describes(const at::Tensor& parameter) const;

private:
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor_;
  const void* data_;
  int64_t version_;
};

struct PackedBuffer {
  std::vector<ParameterState> parameters;
  std::shared_ptr<void> memory;
};

// The buffer of `pack` for these parameters, shared with every executable that has it already.
// Throws when the compiled function reports an error.
std::shared_ptr<const PackedBuffer>
packed_buffer(const Pack& pack, c10::ArrayRef<at::Tensor> parameters, int64_t workspace_bytes);

} // namespace torchmdla
