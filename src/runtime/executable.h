// An artifact loaded in this process and bound to the inputs and outputs of a group.
#pragma once

#include "codeimage/polynomial.h"
#include "input_releases.h"
#include "kernel_times.h"
#include "memory.h"
#include "packed.h"
#include "pending.h"
#include "quantisation.h"

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

// Source of one argument of the program.
struct InputBinding {
  enum class Source { dense, contiguous, scalar, size, constant };
  // dense: passed in place; contiguous: copied first if it is not contiguous; scalar: a double;
  // size: an int64_t
  Source source;
  size_t input = 0;              // index among the group's inputs; of a size: among the symbols
  std::optional<size_t> element; // index in an input that is a list of tensors
  at::Tensor constant;           // set for Source::constant
  bool unversioned = false;      // its content may change without a new version
};

// A tensor that the program computes, with the layout of eager PyTorch.
struct OutputTensor {
  size_t result; // index among the program's results
  c10::ScalarType dtype;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  // Sizes and strides that depend on the call's sizes, by dimension.
  Varying varying_sizes;
  Varying varying_strides;
  std::optional<Quantisation> quantisation; // if set, `dtype` is that of the integers
};

// A list of integers. Each call returns a new one, because its reader may change it.
struct OutputList {
  std::vector<int64_t> numbers;
  Varying varying; // by index
};

// An argument whose memory a result may take. The caller wants the result written to that tensor.
struct InPlaceResult {
  size_t result;
  size_t argument;
};

// An argument that no kernel from number `kernel` on reads, in a call that cannot fail from there
// on.
struct ArgumentRelease {
  size_t argument;
  size_t kernel;
};

// An output: computed by the program, an integer or integers that depend on the call's sizes, or a
// value known since compilation.
using OutputBinding = std::variant<OutputTensor, OutputList, Polynomial, c10::IValue>;

// Owner of compiled code, which keeps it mapped.
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
  int64_t (*workspace)(const int64_t* sizes); // set for a dynamic program, else null
  std::shared_ptr<const CodeOwner> owner;
  // Function that returns why the entry or a pack has just failed on the calling thread, and names
  // the device's call. The text is empty if PyTorch's own error is due. Set for a device that can
  // fail where eager PyTorch would not.
  const char* (*fault)() = nullptr;
  std::shared_ptr<KernelTimes> times = nullptr; // null if kernels cannot be observed
  int64_t program_bytes = 0; // bytes of the program that its owner keeps for debugging
  // Numbers of the subgraph's nodes that each kernel computes; empty if they are not known.
  std::vector<std::vector<size_t>> kernel_nodes = {};
  // Whether the code runs on the processor of PyTorch's operators, and may be slower than these.
  bool competes_with_eager = false;
  // First buffer of the entry in place of the workspace, if set: the device's own data.
  void* context = nullptr;
  AsynchronousCalls asynchronous = {};
};

// Failure of the device, with the text of CompiledCode::fault. `has_python_error` is set if a
// Python exception waits to be raised (torchmdla/devices/interrupts.py).
struct DeviceFault : std::runtime_error {
  explicit DeviceFault(const std::string& text, bool has_python_error = false)
      : std::runtime_error(text), has_python_error(has_python_error) {}
  const bool has_python_error;
};

class Executable {
public:
  // Construct from the bindings. Outputs that first use the results 0, 1, … must come in that
  // order. Results `in_place` are written to arguments with their layout, and these tensors are
  // returned. `releases` are the arguments that a call may drop before its end.
  Executable(CompiledCode code, std::vector<InputBinding> inputs,
             std::vector<OutputBinding> outputs, const std::vector<InPlaceResult>& in_place = {},
             const std::vector<ArgumentRelease>& releases = {});

  // Replace the group's `num_inputs` inputs on the stack by its outputs. `symbols` are the sizes of
  // a dynamic program. Return false if the compiled code reports an error. The stack is unchanged
  // then, and also if DeviceFault is thrown. If the call gives up its inputs, each is dropped as
  // soon as no kernel reads it any more. If `recover` is set, results of an asynchronous device are
  // pending (pending.h), and inputs may be.
  bool run(torch::jit::Stack& stack, size_t num_inputs, c10::ArrayRef<int64_t> symbols,
           bool gives_up_inputs = false, decltype(PendingCall::recover) recover = nullptr) const;

  // Return whether each argument has a value of its kind. Bindings from a file are not trusted.
  bool accepts(c10::ArrayRef<c10::IValue> values) const;

  // Return whether each argument has such a value for all inputs of these types.
  bool accepts(c10::ArrayRef<c10::TypePtr> types) const;

  const CodeOwner& owner() const { return *code_.owner; }
  const std::shared_ptr<KernelTimes>& times() const { return code_.times; }
  const std::vector<std::vector<size_t>>& kernel_nodes() const { return code_.kernel_nodes; }
  bool competes_with_eager() const { return code_.competes_with_eager; }

  // Return the inputs of a call with copies of the tensors that the call writes results to.
  std::vector<c10::IValue> copy_written(c10::ArrayRef<c10::IValue> values) const;

  // Packs the parameters, if all of them are constants, so that the first call finds them packed.
  void pack_constants() const;

  // Prefetch the data of the parameters that a call will read.
  void prefetch() const;

  // Let packed parameters in mapped files leave the resident set, after other code has read them.
  void page_out_parameters() const;

  // Return the bytes of its packs in memory_use().packed, which others may share. `held_bytes` adds
  // the bytes of its code, but for the image.
  int64_t packed_bytes() const;
  int64_t held_bytes() const { return program_.bytes() + packed_bytes(); }

  // Drop the packs; the next call packs again. Return the bytes that running calls still hold, or
  // 0.
  int64_t drop_packed() const;

private:
  // Packs that a call uses, and the time spent on checking that they are current.
  struct Packed {
    std::shared_ptr<const PackedSet> set;
    uint64_t check_time = 0;
  };

  std::vector<InputRelease> input_releases(const std::vector<ArgumentRelease>& releases) const;
  int32_t run_entry(void* const* buffers, c10::ArrayRef<int64_t> symbols) const;
  void wait_for_inputs(c10::ArrayRef<c10::IValue> values) const;
  int32_t wait_for_results(c10::ArrayRef<at::Tensor> results) const;
  Packed packed(c10::ArrayRef<c10::IValue> values, c10::ArrayRef<void*> arguments) const;
  bool is_current(const PackedSet& set, c10::ArrayRef<c10::IValue> values,
                  c10::ArrayRef<void*> arguments) const;
  std::shared_ptr<const PackedSet> pack(c10::ArrayRef<c10::IValue> values) const;
  void bind_inputs(c10::ArrayRef<c10::IValue> values, c10::ArrayRef<int64_t> symbols,
                   c10::SmallVectorImpl<void*>& buffers, double* next_scalar,
                   c10::SmallVectorImpl<at::Tensor>& copies) const;
  at::Tensor result_tensor(size_t result, c10::ArrayRef<c10::IValue> values,
                           c10::ArrayRef<int64_t> symbols) const;
  void push_outputs(torch::jit::Stack& stack, size_t num_inputs, c10::ArrayRef<int64_t> symbols,
                    c10::ArrayRef<at::Tensor> results) const;

  CompiledCode code_;
  const CountedBytes program_;
  std::vector<InputBinding> inputs_;
  std::vector<OutputBinding> outputs_;
  std::vector<size_t> owner_of_result_;                 // output that each result is allocated for
  std::vector<std::optional<size_t>> written_argument_; // by result: the argument to write to
  std::vector<InputRelease> releases_;                  // in the order of kernels
  std::vector<size_t> parameters_;     // indices of the arguments that packs use, ascending
  size_t scalars_;                     // number of arguments that are doubles
  std::shared_ptr<PackedSlot> packed_; // null if nothing is packed
};

} // namespace torchmdla
