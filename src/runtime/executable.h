// An artifact loaded in this process and bound to the inputs and outputs of a group.
#pragma once

#include "kernel_times.h"
#include "memory.h"
#include "packed.h"
#include "polynomial.h"
#include "support/quantisation.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace torchmdla {

// Where an argument of the program comes from.
struct InputBinding {
  enum class Source { dense, contiguous, scalar, size, constant };
  // dense: as it lies in memory; contiguous: copied first if it is not; scalar: a double; size: an
  // int64_t
  Source source;
  size_t input = 0;              // index among the group's inputs, of a size among the symbols
  std::optional<size_t> element; // of an input that is a list of tensors
  at::Tensor constant;           // for Source::constant
  bool unversioned = false;      // its content may change without another version
};

// A tensor that the program computes, laid out as eager PyTorch lays it out.
struct OutputTensor {
  size_t result; // index among the program's results
  c10::ScalarType dtype;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  // Sizes and strides that depend on the call's sizes, by dimension.
  Varying varying_sizes;
  Varying varying_strides;
  std::optional<Quantisation> quantisation; // of a quantised tensor, whose integers have the dtype
};

// A list of integers, a new one in each call: its reader may change it.
struct OutputList {
  std::vector<int64_t> numbers;
  Varying varying; // by place
};

// An output is computed, or an integer or integers that the call's sizes tell, or known since
// compilation.
using OutputBinding = std::variant<OutputTensor, OutputList, Polynomial, c10::IValue>;

// Keeps compiled code mapped.
struct CodeOwner {
  CodeOwner() = default;
  CodeOwner(const CodeOwner&) = delete;
  CodeOwner& operator=(const CodeOwner&) = delete;
  virtual ~CodeOwner() = default;
};

struct CompiledCode {
  Entry entry;
  std::vector<Pack> packs;
  int64_t workspace_bytes;
  int64_t (*workspace)(const int64_t* sizes); // of a dynamic program, else null
  std::shared_ptr<const CodeOwner> owner;
  // Of a device that can fail where eager PyTorch would not: why the entry or a pack has just
  // failed on the calling thread, naming the device's call; empty where PyTorch's own error is due.
  const char* (*fault)() = nullptr;
  std::shared_ptr<KernelTimes> times = nullptr; // null where nothing can be observed
  int64_t program_bytes = 0;                    // of what its owner keeps of the program for people
};

// The device failed. The text is CompiledCode::fault's. `held`: by an exception of Python's that
// waits to be raised (torchmdla/devices/interrupts.py).
struct DeviceFault : std::runtime_error {
  explicit DeviceFault(const std::string& text, bool held = false)
      : std::runtime_error(text), held(held) {}
  const bool held;
};

class Executable {
public:
  // The outputs that first use the results 0, 1, … must come in that order.
  Executable(CompiledCode code, std::vector<InputBinding> inputs,
             std::vector<OutputBinding> outputs);

  // Replaces the group's `num_inputs` inputs on the stack by its outputs; `symbols` are the sizes
  // of a dynamic program. False when the compiled code reports an error; the stack is then as it
  // was. So it is when DeviceFault is thrown.
  bool run(torch::jit::Stack& stack, size_t num_inputs, c10::ArrayRef<int64_t> symbols) const;

  // Whether there is a value of the kind for each argument. Code from a file may say anything.
  bool takes(c10::ArrayRef<c10::IValue> values) const;

  // Whether there is such a value whatever inputs of these types are.
  bool takes(c10::ArrayRef<c10::TypePtr> types) const;

  const CodeOwner& owner() const { return *code_.owner; }
  const std::shared_ptr<KernelTimes>& times() const { return code_.times; }

  // Packs the parameters, if all of them are constants, so that the first call finds them packed.
  void pack_constants() const;

  // Fetches what a call will read of its parameters, without waiting for it.
  void prefetch() const;

  // What it holds of memory_use().packed, though others may, too; and with that of its code, but
  // for the image.
  int64_t packed_bytes() const;
  int64_t held_bytes() const { return program_.bytes() + packed_bytes(); }

  // The next call packs anew. How many bytes a call keeps that runs: 0 where none does.
  int64_t drop_packed() const;

private:
  // What a call uses, and how long it looked whether that is current.
  struct Packed {
    std::shared_ptr<const PackedSet> set;
    uint64_t looking = 0;
  };

  int32_t enter(void* const* buffers, c10::ArrayRef<int64_t> symbols) const;
  Packed packed(c10::ArrayRef<c10::IValue> values, c10::ArrayRef<void*> arguments) const;
  bool is_current(const PackedSet& set, c10::ArrayRef<c10::IValue> values,
                  c10::ArrayRef<void*> arguments) const;
  std::shared_ptr<const PackedSet> pack(c10::ArrayRef<c10::IValue> values) const;
  void bind_inputs(c10::ArrayRef<c10::IValue> values, c10::ArrayRef<int64_t> symbols,
                   c10::SmallVectorImpl<void*>& buffers, double* next_scalar,
                   c10::SmallVectorImpl<at::Tensor>& copies) const;
  void push_outputs(torch::jit::Stack& stack, size_t num_inputs, c10::ArrayRef<int64_t> symbols,
                    c10::ArrayRef<at::Tensor> results) const;

  CompiledCode code_;
  const CountedBytes program_;
  std::vector<InputBinding> inputs_;
  std::vector<OutputBinding> outputs_;
  std::vector<size_t> owner_of_result_; // the output that a result is allocated for
  std::vector<size_t> parameters_;      // the arguments that packs are made of, in order
  size_t scalars_;                      // how many arguments are doubles
  std::shared_ptr<PackedSlot> packed_;  // null where nothing is packed
};

} // namespace torchmdla
