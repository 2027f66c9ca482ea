// Plain data of an ONNX file: the parts of onnx.proto that the emulator uses.
#pragma once

#include "shape.h"

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mdla {

// Constant: floats of a network, or integers (sizes, axes).
struct OnnxTensor {
  Shape shape;
  bool integral = false;
  std::vector<float> floats;
  std::vector<int64_t> integers;
};

struct OnnxAttribute {
  float real = 0;
  int64_t integer = 0;
  std::string string;
  std::optional<OnnxTensor> tensor;
  std::vector<float> reals;
  std::vector<int64_t> integers;
};

struct OnnxNode {
  std::string name, type, domain;
  std::vector<std::string> inputs, outputs;
  std::map<std::string, OnnxAttribute> attributes;
};

struct OnnxInput {
  std::string name;
  int64_t element_type = 0;
  bool has_shape = false;
  Shape shape; // -1 for a size that the file does not specify
};

struct OnnxModel {
  int64_t opset = 0;
  std::vector<OnnxNode> nodes;
  std::map<std::string, OnnxTensor> initialisers;
  std::vector<OnnxInput> inputs; // without initialisers
  std::vector<std::string> outputs;
};

inline constexpr int64_t kOnnxFloat = 1; // TensorProto.DataType

// Read an ONNX file. Throw Fault, which gives the reason, if it is not valid.
OnnxModel parse_onnx(std::string_view bytes);
OnnxModel read_onnx(const std::string& path);

} // namespace mdla
