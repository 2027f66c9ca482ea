#include "builder.h"

#include <algorithm>

namespace mdla {

const Value& NodeBuilder::input(size_t index) const {
  check(has(index), "input ", index, " is missing");
  return builder.value(node.inputs[index]);
}

TensorId NodeBuilder::tensor(size_t index) const {
  const Value& value = input(index);
  if (value.tensor != kNoTensor) return value.tensor;
  return builder.new_constant(node.inputs[index], value.shape, floats(index, "an operand"));
}

const OnnxTensor& NodeBuilder::constant(size_t index, const char* what) const {
  const Value& value = input(index);
  check(value.constant != nullptr, what, " must be constant");
  return *value.constant;
}

const std::vector<float>& NodeBuilder::floats(size_t index, const char* what) const {
  const OnnxTensor& tensor = constant(index, what);
  check(!tensor.integral, what, " must be floats");
  return tensor.floats;
}

const std::vector<int64_t>& NodeBuilder::integers(size_t index, const char* what) const {
  const OnnxTensor& tensor = constant(index, what);
  check(tensor.integral, what, " must be integers");
  return tensor.integers;
}

int64_t NodeBuilder::integer(const char* name, int64_t otherwise) const {
  auto entry = node.attributes.find(name);
  return entry == node.attributes.end() ? otherwise : entry->second.integer;
}

float NodeBuilder::real(const char* name, float otherwise) const {
  auto entry = node.attributes.find(name);
  return entry == node.attributes.end() ? otherwise : entry->second.real;
}

std::string NodeBuilder::string(const char* name, const char* otherwise) const {
  auto entry = node.attributes.find(name);
  return entry == node.attributes.end() ? otherwise : entry->second.string;
}

const std::vector<int64_t>* NodeBuilder::integers(const char* name) const {
  auto entry = node.attributes.find(name);
  return entry == node.attributes.end() ? nullptr : &entry->second.integers;
}

std::vector<int64_t> NodeBuilder::integers(const char* name, size_t count,
                                           int64_t otherwise) const {
  const std::vector<int64_t>* numbers = integers(name);
  if (!numbers || numbers->empty()) return std::vector<int64_t>(count, otherwise);
  check(numbers->size() == count, name, " has ", numbers->size(), " numbers instead of ", count);
  return *numbers;
}

int64_t NodeBuilder::axis(int64_t value, size_t rank) const {
  int64_t last = static_cast<int64_t>(rank);
  check(value >= -last && value < last, "axis ", value, " of a tensor of ", rank, " dimensions");
  return value < 0 ? value + last : value;
}

TensorId NodeBuilder::output(const Shape& shape, size_t index) const {
  check(index < node.outputs.size(), "output ", index, " is missing");
  TensorId tensor = builder.new_tensor(node.outputs[index], shape);
  builder.define(node.outputs[index], {shape, tensor, nullptr});
  return tensor;
}

Index wide_sizes(const NodeBuilder& at, const Shape& shape) {
  at.check(shape.size() <= kRank, "a tensor of ", shape.size(), " dimensions; the device takes ",
           kRank);
  Index sizes;
  sizes.fill(1);
  std::copy(shape.begin(), shape.end(), sizes.end() - static_cast<int64_t>(shape.size()));
  return sizes;
}

Index wide_strides(const Shape& strides) {
  Index wide{};
  std::copy(strides.begin(), strides.end(), wide.end() - static_cast<int64_t>(strides.size()));
  return wide;
}

Shape broadcast_strides(const NodeBuilder& at, const Shape& from, const Shape& to) {
  at.check(from.size() <= to.size(), "the shape ", text(from), " does not broadcast to ", text(to));
  Shape dense = dense_strides(from), strides(to.size(), 0);
  size_t missing = to.size() - from.size();
  for (size_t axis = 0; axis < from.size(); ++axis) {
    at.check(from[axis] == to[axis + missing] || from[axis] == 1, "the shape ", text(from),
             " does not broadcast to ", text(to));
    if (from[axis] != 1) strides[axis + missing] = dense[axis];
  }
  return strides;
}

Shape broadcast(const NodeBuilder& at, const Shape& left, const Shape& right) {
  Shape both(std::max(left.size(), right.size()), 1);
  for (const Shape* shape : {&left, &right}) {
    size_t missing = both.size() - shape->size();
    for (size_t axis = 0; axis < shape->size(); ++axis) {
      int64_t size = (*shape)[axis];
      int64_t& wide = both[axis + missing];
      at.check(size == wide || size == 1 || wide == 1, "the shapes ", text(left), " and ",
               text(right), " do not broadcast");
      if (wide == 1) wide = size;
    }
  }
  return both;
}

Spatial spatial_sizes(const Shape& shape) {
  Spatial sizes{1, 1, 1};
  std::copy(shape.begin() + 2, shape.end(), sizes.end() - (static_cast<int64_t>(shape.size()) - 2));
  return sizes;
}

Shape with_spatial(const Shape& shape, int64_t channels, const Spatial& sizes) {
  Shape result{shape[0], channels};
  result.insert(result.end(), sizes.end() - (static_cast<int64_t>(shape.size()) - 2), sizes.end());
  return result;
}

namespace {

// Limit on kernels, strides, dilations and padding along one axis. No sum of a few products of
// these overflows.
constexpr int64_t kMostOfWindow = int64_t{1} << 20;

void set_auto_pad(const NodeBuilder& at, const Spatial& in, SpatialAttributes& attributes) {
  std::string mode = at.string("auto_pad", "NOTSET");
  if (mode == "NOTSET" || mode == "VALID") return;
  at.check(mode == "SAME_UPPER" || mode == "SAME_LOWER", "auto_pad ", mode);
  for (int axis = 0; axis < 3; ++axis) {
    int64_t covered = (attributes.kernel[axis] - 1) * attributes.dilation[axis] + 1;
    int64_t outputs = ceil_div(in[axis], attributes.stride[axis]);
    int64_t total =
        std::max<int64_t>((outputs - 1) * attributes.stride[axis] + covered - in[axis], 0);
    attributes.pad[axis] = mode == "SAME_UPPER" ? total / 2 : total - total / 2;
    attributes.pad_end[axis] = total - attributes.pad[axis];
  }
}

} // namespace

SpatialAttributes spatial_attributes(const NodeBuilder& at, const Shape& input,
                                     const std::vector<int64_t>& kernel) {
  at.check(input.size() >= 3 && input.size() <= 5, "an input of ", input.size(),
           " dimensions; the device takes 3 to 5");
  SpatialAttributes attributes;
  attributes.dims = input.size() - 2;
  at.check(kernel.size() == attributes.dims, "a kernel of ", kernel.size(),
           " dimensions for an input of ", input.size());
  auto strides = at.integers("strides", attributes.dims, 1);
  auto dilations = at.integers("dilations", attributes.dims, 1);
  auto pads = at.integers("pads", 2 * attributes.dims, 0);
  for (size_t axis = 0; axis < attributes.dims; ++axis) {
    size_t to = 3 - attributes.dims + axis;
    attributes.kernel[to] = kernel[axis], attributes.stride[to] = strides[axis];
    attributes.dilation[to] = dilations[axis];
    attributes.pad[to] = pads[axis], attributes.pad_end[to] = pads[axis + attributes.dims];
    for (int64_t size : {kernel[axis], strides[axis], dilations[axis]})
      at.check(size > 0 && size < kMostOfWindow, "a kernel, stride or dilation of ", size);
    for (int64_t size : {attributes.pad[to], attributes.pad_end[to]})
      at.check(size >= 0 && size < kMostOfWindow, "pads of ", size);
  }
  set_auto_pad(at, spatial_sizes(input), attributes);
  return attributes;
}

} // namespace mdla
