// Content of a model's file, without the weights (torchmdla/packages/native_file.py writes it).
#pragma once

#include "base/sha256.h"
#include "codeimage/polynomial.h"
#include "codeimage/size_program.h"
#include "tensor.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace torchmdla::native {

// Input or output of a model.
struct Port {
  std::string name;
  int64_t dtype;
  Numbers sizes; // -1 for a size that differs between specialisations
};

// Parameter, or buffer that a pack computed from parameters.
struct Weight {
  uint64_t offset; // from the start of the first weight
  uint64_t bytes;
  Digest digest;
};

// Sizes and layout that a specialisation expects of an input.
struct InputLayout {
  static constexpr int64_t fixed = -1;
  Numbers sizes;
  Numbers symbols;     // number of the symbol of each size, or `fixed`
  Numbers permutation; // the tensor is contiguous after this permutation of its dimensions
};

struct Argument {
  enum class Source : uint8_t { input, weight, size, unused };
  Source source;
  size_t index;
};

struct OutputLayout {
  size_t result; // index among the results of the code; outputs may share one
  Numbers sizes, strides;
  Varying varying_sizes, varying_strides;

  Numbers sizes_at(std::span<const int64_t> symbols) const;
  Numbers strides_at(std::span<const int64_t> symbols) const;
};

// Code for some sizes of the inputs: one size each, or all values of some symbols.
struct Specialisation {
  size_t image;
  std::string entry, workspace; // `workspace` computes the workspace's size of a dynamic one
  size_t workspace_bytes;
  std::vector<InputLayout> inputs;
  size_t symbols;
  std::optional<SizeProgram> sizes; // computes further symbols, if it is dynamic
  std::vector<Argument> arguments;
  std::vector<size_t> packs; // indices of the weights that packs computed
  std::vector<OutputLayout> outputs;
  std::vector<size_t> owners; // for each result, the first output that uses it

  // Return the values of the symbols for `inputs`, or nullopt if the code does not support their
  // sizes.
  std::optional<Numbers> symbols_at(std::span<const TensorView> inputs) const;
};

struct Content {
  std::set<std::string> features; // processor features that the code uses, by their LLVM names
  std::vector<Port> inputs, outputs;
  std::vector<Weight> weights;
  std::vector<std::span<const std::byte>> images; // views of the bytes that were read
  std::vector<Specialisation> specialisations;
};

// Read the content in `bytes`. Throw BadBytes if it is malformed. `weight_bytes`: number of bytes
// after the sealed block in the file.
Content read_content(std::span<const std::byte> bytes, uint64_t weight_bytes);

} // namespace torchmdla::native
