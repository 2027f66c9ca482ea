// What a model's file says, but for the weights (torchmdla/packages/native_file.py writes it).
#pragma once

#include "runtime/polynomial.h"
#include "runtime/size_program.h"
#include "support/sha256.h"
#include "tensor.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace torchmdla::native {

// An input or output.
struct Port {
  std::string name;
  int64_t dtype;
  Numbers sizes; // -1 where specialisations differ
};

// A buffer that a pack made, or a parameter.
struct Weight {
  uint64_t offset; // from the first weight on
  uint64_t bytes;
  Digest digest;
};

// Sizes that an input has, for which symbols stand in the places that are not `fixed`; the data is
// contiguous once the dimensions are permuted.
struct InputLayout {
  static constexpr int64_t fixed = -1;
  Numbers sizes;
  Numbers symbols;
  Numbers permutation;
};

struct Argument {
  enum class Source : uint8_t { input, weight, size, unused };
  Source source;
  size_t index;
};

struct OutputLayout {
  size_t result; // of the program
  Numbers sizes, strides;
  Varying varying_sizes, varying_strides;

  Numbers sizes_at(std::span<const int64_t> symbols) const;
  Numbers strides_at(std::span<const int64_t> symbols) const;
};

// Code for some sizes of the inputs.
struct Specialisation {
  size_t image;
  std::string entry, workspace; // the function that tells the workspace of a dynamic one
  size_t workspace_bytes;
  std::vector<InputLayout> inputs;
  size_t symbols;
  std::optional<SizeProgram> sizes; // of a dynamic one
  std::vector<Argument> arguments;
  std::vector<size_t> packs; // weights
  std::vector<OutputLayout> outputs;
  std::vector<size_t> owners; // for each result the first output that is it

  // The symbols' values where the inputs have these sizes; nullopt where the code is not for them.
  std::optional<Numbers> symbols_at(std::span<const TensorView> inputs) const;
};

struct Content {
  std::set<std::string> features; // of a processor, by LLVM's names
  std::vector<Port> inputs, outputs;
  std::vector<Weight> weights;
  std::vector<std::span<const std::byte>> images; // of the bytes that were read
  std::vector<Specialisation> specialisations;
};

// Throws BadBytes. `weight_bytes`: how many the file has behind the sealed block.
Content read_content(std::span<const std::byte> bytes, uint64_t weight_bytes);

} // namespace torchmdla::native
