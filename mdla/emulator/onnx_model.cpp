#include "onnx_model.h"

#include "files.h"
#include "protobuf.h"

#include <algorithm>
#include <cstring>

namespace mdla {
namespace {

// TensorProto.DataType of onnx.proto.
enum DataType : int64_t { kFloat = 1, kInt32 = 6, kInt64 = 7, kDouble = 11 };

template <class Stored, class Value>
void copy_raw(std::string_view raw, std::vector<Value>& values, const std::string& name) {
  require(raw.size() % sizeof(Stored) == 0, "initialiser \"", name, "\" is cut");
  values.reserve(values.size() + raw.size() / sizeof(Stored));
  for (size_t at = 0; at < raw.size(); at += sizeof(Stored)) {
    Stored stored;
    std::memcpy(&stored, raw.data() + at, sizeof stored);
    values.push_back(static_cast<Value>(stored));
  }
}

void take_raw(std::string_view raw, int64_t type, const std::string& name, OnnxTensor& tensor) {
  switch (type) {
  case kFloat:
    return copy_raw<float>(raw, tensor.floats, name);
  case kDouble:
    return copy_raw<double>(raw, tensor.floats, name);
  case kInt32:
    return copy_raw<int32_t>(raw, tensor.integers, name);
  case kInt64:
    return copy_raw<int64_t>(raw, tensor.integers, name);
  }
}

// Fields of TensorProto: 1 dims, 2 data_type, 4 float_data, 5 int32_data, 7 int64_data, 8 name,
// 9 raw_data, 10 double_data, 13 external_data.
OnnxTensor read_tensor(Message message, std::string& name) {
  OnnxTensor tensor;
  int64_t type = 0;
  std::string_view raw;
  std::vector<double> doubles;
  while (message.next()) {
    const auto field = message.field();
    if (field == 1) message.append(tensor.shape);
    if (field == 2) type = message.integer();
    if (field == 4) message.append_fixed(tensor.floats);
    if (field == 5 || field == 7) message.append(tensor.integers);
    if (field == 8) name = message.string();
    if (field == 9) raw = message.bytes();
    if (field == 10) message.append_fixed(doubles);
    require(field != 13, "initialiser \"", name,
            "\" is in another file; save the model as one file");
  }
  require(type == kFloat || type == kDouble || type == kInt32 || type == kInt64, "initialiser \"",
          name, "\" has the element type ", type,
          "; the device takes float, double, int32 and int64");
  tensor.floats.insert(tensor.floats.end(), doubles.begin(), doubles.end());
  if (!raw.empty()) take_raw(raw, type, name, tensor);
  tensor.integral = type == kInt32 || type == kInt64;
  for (int64_t size : tensor.shape)
    require(size >= 0, "initialiser \"", name, "\" has a negative size");
  size_t held = tensor.integral ? tensor.integers.size() : tensor.floats.size();
  require(static_cast<int64_t>(held) == elements(tensor.shape), "initialiser \"", name, "\" has ",
          held, " elements for the shape ", text(tensor.shape));
  return tensor;
}

// Fields of AttributeProto: 1 name, 2 f, 3 i, 4 s, 5 t, 7 floats, 8 ints.
OnnxAttribute read_attribute(Message message, std::string& name) {
  OnnxAttribute attribute;
  std::string ignored;
  while (message.next()) {
    const auto field = message.field();
    if (field == 1) name = message.string();
    if (field == 2) attribute.real = message.real();
    if (field == 3) attribute.integer = message.integer();
    if (field == 4) attribute.string = message.string();
    if (field == 5) attribute.tensor = read_tensor(message.message(), ignored);
    if (field == 7) message.append_fixed(attribute.reals);
    if (field == 8) message.append(attribute.integers);
  }
  return attribute;
}

// Read a value and its name, and add it to `values`.
template <class Values, class Read>
void add_named(Values& values, Read read, const Message& message) {
  std::string name;
  auto value = read(message, name);
  values[name] = std::move(value);
}

// Fields of NodeProto: 1 input, 2 output, 3 name, 4 op_type, 5 attribute, 7 domain.
OnnxNode read_node(Message message) {
  OnnxNode node;
  while (message.next()) {
    const auto field = message.field();
    if (field == 1) node.inputs.push_back(message.string());
    if (field == 2) node.outputs.push_back(message.string());
    if (field == 3) node.name = message.string();
    if (field == 4) node.type = message.string();
    if (field == 5) add_named(node.attributes, read_attribute, message.message());
    if (field == 7) node.domain = message.string();
  }
  if (node.name.empty() && !node.outputs.empty()) node.name = node.outputs[0];
  return node;
}

// Fields of TensorShapeProto: 1 dim (1 dim_value, 2 dim_param).
Shape read_shape(Message message) {
  Shape shape;
  while (message.next()) {
    if (message.field() != 1) continue;
    int64_t size = -1;
    for (Message dim = message.message(); dim.next();)
      if (dim.field() == 1) size = dim.integer();
    shape.push_back(size);
  }
  return shape;
}

// Fields of ValueInfoProto: 1 name, 2 type (1 tensor_type (1 elem_type, 2 shape)).
OnnxInput read_input(Message message) {
  OnnxInput input;
  while (message.next()) {
    if (message.field() == 1) input.name = message.string();
    if (message.field() != 2) continue;
    for (Message type = message.message(); type.next();) {
      if (type.field() != 1) continue;
      for (Message tensor = type.message(); tensor.next();) {
        if (tensor.field() == 1) input.element_type = tensor.integer();
        if (tensor.field() == 2) input.shape = read_shape(tensor.message()), input.has_shape = true;
      }
    }
  }
  return input;
}

// Fields of GraphProto: 1 node, 5 initializer, 11 input, 12 output.
void read_graph(Message message, OnnxModel& model) {
  while (message.next()) {
    const auto field = message.field();
    if (field == 1) model.nodes.push_back(read_node(message.message()));
    if (field == 5) add_named(model.initialisers, read_tensor, message.message());
    if (field == 11) model.inputs.push_back(read_input(message.message()));
    if (field == 12) model.outputs.push_back(read_input(message.message()).name);
  }
  std::erase_if(model.inputs,
                [&](const OnnxInput& input) { return model.initialisers.count(input.name); });
}

// Fields of OperatorSetIdProto: 1 domain, 2 version.
void read_opset(Message message, OnnxModel& model) {
  std::string domain;
  int64_t version = 0;
  while (message.next()) {
    if (message.field() == 1) domain = message.string();
    if (message.field() == 2) version = message.integer();
  }
  if (domain.empty() || domain == "ai.onnx") model.opset = version;
}

} // namespace

// Fields of ModelProto: 7 graph, 8 opset_import.
OnnxModel parse_onnx(std::string_view bytes) {
  OnnxModel model;
  for (Message message(bytes); message.next();) {
    if (message.field() == 7) read_graph(message.message(), model);
    if (message.field() == 8) read_opset(message.message(), model);
  }
  require(model.opset > 0 && !model.outputs.empty(), "this is not an ONNX model");
  require(model.opset >= 13 && model.opset <= 18, "the model has opset ", model.opset,
          "; the device takes 13 to 18");
  return model;
}

OnnxModel read_onnx(const std::string& path) {
  return parse_onnx(read_file(path));
}

} // namespace mdla
