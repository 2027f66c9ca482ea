// Buffers made from parameters once for every version of these: packed weights, folded statistics.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
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
  void (*release)(void* buffer) = nullptr; // called before the buffer's memory is freed, if any
};

// A pack reported an error. `held`: an exception of Python's waits to be raised.
struct PackingFailed : std::runtime_error {
  explicit PackingFailed(bool held)
      : std::runtime_error("torchmdla: packing parameters failed"), held(held) {}
  const bool held;
};

// A parameter as it was when something was made of it: its identity, version and some of its
// content, since writes through `.data` give no other version, or, of one that is unversioned
// (PyTorch itself changes its content without giving it another version), a copy.
class ParameterState {
public:
  explicit ParameterState(const at::Tensor& parameter);

  // Of an unversioned parameter, with a copy of its content.
  ParameterState(const at::Tensor& parameter, std::shared_ptr<const std::byte[]> copy);

  // Fetches all that `describes` will read, without waiting for any of it: a call finds it far from
  // the caches, in thousands of places.
  void prefetch() const;

  // Whether `parameter`, whose data is at `data`, has the same content. Never true for inference
  // tensors that are not unversioned parameters: these have no version.
  bool describes(const at::Tensor& parameter, const void* data) const;

  // Whether both describe the same content.
  bool operator==(const ParameterState& other) const;

  // The content that is described, as long as the tensor has it.
  const void* data() const { return copy_ ? copy_.get() : data_; }

private:
  // Of places all over the content: few, since they are read in every call, and far from any cache.
  using Samples = std::array<uint64_t, 4>;
  static Samples samples_of(const void* data, size_t bytes);
  static size_t step_of_samples(size_t bytes);

  // Weak references: no other tensor or storage gets the address while they are held.
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor_;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage_;
  const void* data_;
  int64_t version_;
  Samples samples_{};                       // of a versioned one
  std::shared_ptr<const std::byte[]> copy_; // of an unversioned parameter
  size_t bytes_;
};

// The states of parameters, some of them unversioned.
std::vector<ParameterState> states_of(c10::ArrayRef<at::Tensor> parameters,
                                      const std::vector<bool>& unversioned);

struct PackedBuffer {
  std::vector<ParameterState> parameters;
  std::shared_ptr<void> memory;
};

// The buffer of `pack` for these parameters, shared with every executable that has it already.
// Throws PackingFailed. A pack may be a function of Python's, so the GIL must not be held: another
// thread waits for it while it packs.
std::shared_ptr<const PackedBuffer>
packed_buffer(const Pack& pack, std::vector<ParameterState> parameters, int64_t workspace_bytes);

} // namespace torchmdla
