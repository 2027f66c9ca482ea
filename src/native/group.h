// Compiled groups of a program: which code a call uses, and the call.
#pragma once

#include "codeimage/polynomial.h"
#include "codeimage/size_program.h"
#include "tensor.h"
#include "value.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace torchmdla::native {

// Source of an argument of the code.
struct Argument {
  // input: a tensor; scalar: a double among the inputs; size: a symbol; unused: not read
  enum class Source : uint8_t { input, scalar, size, weight, unused };
  static constexpr int64_t whole = -1;

  Source source;
  size_t index;
  int64_t element = whole; // in an input that is a list
  Numbers permutation;     // the tensor is contiguous after this permutation of its dimensions
};

// A tensor that the code computes.
struct TensorOutput {
  size_t result; // index among the results of the code; outputs may share one
  int64_t dtype;
  Numbers sizes, strides;
  Varying varying_sizes, varying_strides;
};

struct NumbersOutput {
  Numbers numbers;
  Varying varying;
};

struct ConstantOutput {
  size_t constant; // index among the program's constants
};

using Output = std::variant<TensorOutput, NumbersOutput, Polynomial, ConstantOutput>;

// Code of a group for inputs of some types. Signatures are those of src/group/signature.h.
struct Specialisation {
  static constexpr int64_t fixed = -1;

  size_t image;
  std::string entry, workspace; // `workspace` computes the workspace's size of a dynamic one
  size_t workspace_bytes;
  Numbers signature;
  Numbers places;                   // the symbol of each entry of the signature, or `fixed`
  size_t symbols;                   // without the computed ones
  std::optional<SizeProgram> sizes; // computes further symbols
  std::vector<Argument> arguments;
  std::vector<size_t> packs; // indices of the weights that packs computed
  std::vector<Output> outputs;
  std::vector<size_t> owners; // for each result, the first output that uses it
};

struct Group {
  std::string source; // place in the user's program
  size_t inputs, outputs;
  std::vector<Specialisation> specialisations;
};

// Code of a specialisation in this process.
struct Code {
  const Specialisation* specialisation;
  std::shared_ptr<const void> owner; // an image, or code of a device's library
  int32_t (*entry)(void* const* buffers);
  int64_t (*workspace)(const int64_t* symbols);
  void* context;                 // first buffer of the entry in place of the workspace, if set
  int32_t (*wait)(void* result); // copies a result to host memory, if the device is asynchronous
  const char* (*fault)(); // returns why the entry has failed, if a device can fail; else null
  std::vector<const void*> packed;  // buffers of the packs
  std::vector<const void*> weights; // by argument; null for those from elsewhere
};

using Inputs = std::span<const Value* const>;

// A group in this process. It never changes.
class LoadedGroup {
public:
  // Code for a call, and the values of its symbols.
  struct Choice {
    const Code* code = nullptr;
    Dimensions symbols;
  };

  LoadedGroup(const Group& group, std::vector<Code> codes)
      : group_(&group), codes_(std::move(codes)) {}

  const Group& description() const { return *group_; }

  // Choose the code for the inputs. Throw Error if the group lacks it.
  Choice choose(Inputs inputs) const;

  // Run the code. `constants` are the program's.
  void run(const Choice& choice, Inputs inputs, std::span<Value* const> outputs,
           std::span<const Value> constants, Arena& arena) const;

  // Compute the results in `places`: memory for each result, or null, which memory of the arena
  // replaces.
  void run_into(const Choice& choice, Inputs inputs, std::span<std::byte*> places,
                Arena& arena) const;

  // Return the sizes or the strides of an output.
  static Dimensions sizes_of(const TensorOutput& output, const Choice& choice);
  static Dimensions strides_of(const TensorOutput& output, const Choice& choice);

private:
  [[noreturn]] void refuse(Inputs inputs) const;

  const Group* group_;
  std::vector<Code> codes_;
};

} // namespace torchmdla::native
