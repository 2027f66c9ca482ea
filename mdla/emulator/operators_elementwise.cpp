// Elementwise operators, and softmax.
#include "builder.h"

#include <algorithm>

namespace mdla {
namespace {

template <CombineKind kind> void combine(const NodeBuilder& at) {
  Shape shape = broadcast(at, at.shape(0), at.shape(1));
  CombineLayer layer;
  layer.kind = kind;
  layer.dims = wide_sizes(at, shape);
  layer.a = {at.tensor(0), 0, wide_strides(broadcast_strides(at, at.shape(0), shape))};
  layer.b = {at.tensor(1), 0, wide_strides(broadcast_strides(at, at.shape(1), shape))};
  layer.y = {at.output(shape), 0, wide_strides(dense_strides(shape))};
  at.layer(layer.y.tensor, layer);
}

Layer& flat_move(const NodeBuilder& at, Function function, double parameter) {
  int64_t count = elements(at.shape(0));
  MoveLayer layer;
  layer.dims = layer.extent = {1, 1, 1, 1, 1, count};
  layer.x = {at.tensor(0), 0, {0, 0, 0, 0, 0, 1}};
  layer.y = {at.output(at.shape(0)), 0, {0, 0, 0, 0, 0, 1}};
  layer.function = function, layer.parameter = parameter;
  return at.layer(layer.y.tensor, layer);
}

// Clamp the input. If it has no other reader, the layer that produces it clamps its results.
// Otherwise a new layer does so.
void clamp(const NodeBuilder& at, double low, double high) {
  at.check(low <= high, "the lower bound ", low, " is above the upper bound ", high);
  if (Layer* producer = at.builder.sole_producer(at.node.inputs[0])) {
    producer->low = std::clamp(producer->low, low, high);
    producer->high = std::clamp(producer->high, low, high);
    return at.alias(at.shape(0));
  }
  Layer& layer = flat_move(at, Function::kNone, 0);
  layer.low = low, layer.high = high;
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void relu(const NodeBuilder& at) {
  clamp(at, 0, kInfinity);
}

void clip(const NodeBuilder& at) {
  auto bound = [&](size_t index, double otherwise) {
    if (!at.has(index)) return otherwise;
    const std::vector<float>& value = at.floats(index, "a bound");
    at.check(value.size() == 1, "a bound of ", value.size(), " elements");
    return static_cast<double>(value[0]);
  };
  clamp(at, bound(1, -kInfinity), bound(2, kInfinity));
}

void leaky_relu(const NodeBuilder& at) {
  flat_move(at, Function::kLeakyRelu, at.real("alpha", 0.01f));
}
void tanh(const NodeBuilder& at) {
  flat_move(at, Function::kTanh, 0);
}
void sigmoid(const NodeBuilder& at) {
  flat_move(at, Function::kSigmoid, 0);
}

void softmax(const NodeBuilder& at) {
  const Shape& x = at.shape(0);
  int64_t axis = at.axis(at.integer("axis", -1), x.size());
  SoftmaxLayer layer;
  layer.columns = x[axis];
  layer.outer = elements(Shape(x.begin(), x.begin() + axis));
  layer.inner = elements(Shape(x.begin() + axis + 1, x.end()));
  layer.x = at.tensor(0);
  layer.y = at.output(x);
  at.layer(layer.y, layer);
}

} // namespace

OperatorTable elementwise_operators() {
  return {{"Add", combine<CombineKind::kAdd>},
          {"Sub", combine<CombineKind::kSub>},
          {"Mul", combine<CombineKind::kMul>},
          {"Relu", relu},
          {"Clip", clip},
          {"LeakyRelu", leaky_relu},
          {"Tanh", tanh},
          {"Sigmoid", sigmoid},
          {"Softmax", softmax}};
}

} // namespace mdla
