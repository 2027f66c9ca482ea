// State that the builders of all operators share: values by name, attributes, and the layers of the
// network that is built.
#pragma once

#include "network.h"

#include <map>
#include <memory>

namespace mdla {

// Named value of the ONNX graph: a constant, or a tensor of the network with its own shape.
struct Value {
  Shape shape;
  TensorId tensor = kNoTensor;
  std::shared_ptr<const OnnxTensor> constant;
};

class Builder {
public:
  Builder(const OnnxModel& model, const std::string& inshapes);

  Network build();

  TensorId new_tensor(const std::string& name, const Shape& shape);
  TensorId new_constant(const std::string& name, const Shape& shape, std::vector<float> values);
  Layer& add_layer(const OnnxNode& node, TensorId output, Operation operation);

  const Value& value(const std::string& name) const;
  void define(const std::string& name, Value value);
  // Define `name`, with another shape, as an alias of the same elements.
  void alias(const std::string& of, const std::string& name, const Shape& shape);
  // Return the only layer that writes the value, or null. Return null, too, if the value has other
  // readers or several layers write it.
  Layer* sole_producer(const std::string& name);

  Network network;

private:
  void add_inputs(const OnnxModel& model, const std::string& inshapes);
  void count_uses(const OnnxModel& model);

  const OnnxModel& model_;
  std::map<std::string, Value> values_;
  std::map<std::string, int> uses_;
  std::map<TensorId, int> writers_;
  std::map<TensorId, size_t> producer_;
  std::map<TensorId, bool> shared_;
};

// Access to one node for the builder of its operator.
class NodeBuilder {
public:
  NodeBuilder(Builder& builder, const OnnxNode& node) : builder(builder), node(node) {}

  template <class... Parts> [[noreturn]] void fail(const Parts&... parts) const {
    refuse("node \"", node.name, "\" (", node.type, "): ", parts...);
  }
  template <class... Parts> void check(bool holds, const Parts&... parts) const {
    if (!holds) fail(parts...);
  }

  bool has(size_t index) const { return index < node.inputs.size() && !node.inputs[index].empty(); }
  const Value& input(size_t index) const;
  const Shape& shape(size_t index) const { return input(index).shape; }
  // Return the tensor of an input. Create one if the input is a constant.
  TensorId tensor(size_t index) const;
  const OnnxTensor& constant(size_t index, const char* what) const;
  const std::vector<float>& floats(size_t index, const char* what) const;
  const std::vector<int64_t>& integers(size_t index, const char* what) const;

  int64_t integer(const char* name, int64_t otherwise) const;
  float real(const char* name, float otherwise) const;
  std::string string(const char* name, const char* otherwise) const;
  const std::vector<int64_t>* integers(const char* name) const; // null if it is absent
  std::vector<int64_t> integers(const char* name, size_t count, int64_t otherwise) const;

  // Return the non-negative number of an axis of a tensor of this rank.
  int64_t axis(int64_t value, size_t rank) const;

  TensorId output(const Shape& shape, size_t index = 0) const;
  Layer& layer(TensorId output, Operation operation) const {
    return builder.add_layer(node, output, std::move(operation));
  }
  void alias(const Shape& shape) const { builder.alias(node.inputs[0], node.outputs[0], shape); }

  Builder& builder;
  const OnnxNode& node;
};

// Return sizes or strides of kRank dimensions. Missing dimensions are added in front.
Index wide_sizes(const NodeBuilder& at, const Shape& shape);
Index wide_strides(const Shape& strides);
// Return the strides with which `from` is broadcast to `to`.
Shape broadcast_strides(const NodeBuilder& at, const Shape& from, const Shape& to);
Shape broadcast(const NodeBuilder& at, const Shape& left, const Shape& right);

using OperatorBuilder = void (*)(const NodeBuilder&);
using OperatorTable = std::map<std::string, OperatorBuilder>;

// Builders of the operators, by their ONNX names.
OperatorTable product_operators();     // operators_products.cpp
OperatorTable pooling_operators();     // operators_pooling.cpp
OperatorTable elementwise_operators(); // operators_elementwise.cpp
OperatorTable data_operators();        // operators_data.cpp

// Attributes that Conv and the pools have in common.
struct SpatialAttributes {
  Spatial kernel{1, 1, 1}, stride{1, 1, 1}, dilation{1, 1, 1}, pad{}, pad_end{};
  size_t dims = 0;
};
SpatialAttributes spatial_attributes(const NodeBuilder& at, const Shape& input,
                                     const std::vector<int64_t>& kernel);
// Return the sizes of [N, C, …] after the second, with 1 in front for missing dimensions.
Spatial spatial_sizes(const Shape& shape);
// Return the shape [N, C, …] with `channels` channels and these spatial sizes.
Shape with_spatial(const Shape& shape, int64_t channels, const Spatial& sizes);

} // namespace mdla
