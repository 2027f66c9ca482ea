// Content of a model's file, without the weights (torchmdla/packages/native_file.py writes it).
#pragma once

#include "base/sha256.h"
#include "group.h"
#include "program.h"
#include "tensor.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace torchmdla::native {

// Parameter, or buffer that a pack computed from parameters.
struct Weight {
  uint64_t offset; // from the start of the first weight
  uint64_t bytes;
  Digest digest;
};

// Input or output of a model that is one group.
struct Port {
  std::string name;
  int64_t dtype;
  Numbers sizes; // -1 for a size that differs between specialisations
};

// Model that is one group: the first one, called without a session.
struct Direct {
  std::vector<Port> inputs, outputs;
  std::vector<size_t> input_numbers;  // for each input of the group, the model's input
  std::vector<size_t> output_numbers; // for each output of the model, the group's output
};

// Code of all groups for machines with some features.
struct Target {
  std::string name;
  std::set<std::string> features;   // of the processor by LLVM's names, and of devices
  std::vector<std::string> devices; // other than the processor
  std::vector<std::span<const std::byte>> images; // views of the bytes that were read
  std::vector<Group> groups;
};

struct Content {
  std::vector<Weight> weights;
  std::vector<Target> targets; // those with the most features first
  Program program;
  std::optional<Direct> direct;
};

// Read the content in `bytes`. Throw BadBytes if it is malformed. `weight_bytes`: number of bytes
// after the sealed block in the file. `weights`: their address, for the tensors among the
// constants.
Content read_content(std::span<const std::byte> bytes, uint64_t weight_bytes,
                     const std::byte* weights);

} // namespace torchmdla::native
