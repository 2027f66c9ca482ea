// Operators that move elements: shapes, slices, padding, resizing, constants.
#include "builder.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace mdla {
namespace {

// Limit on the steps of a slice, on padding, and on the size of a resized axis. Sums and products
// of these do not overflow.
constexpr int64_t kMostSteps = int64_t{1} << 24;

void constant(const NodeBuilder& at) {
  OnnxTensor tensor;
  const auto& attributes = at.node.attributes;
  auto attribute = [&](const char* name) {
    auto entry = attributes.find(name);
    return entry == attributes.end() ? nullptr : &entry->second;
  };
  if (const OnnxAttribute* value = attribute("value")) {
    at.check(value->tensor.has_value(), "value is not a tensor");
    tensor = *value->tensor;
  } else if (const OnnxAttribute* value = attribute("value_float")) {
    tensor.floats = {value->real};
  } else if (const OnnxAttribute* value = attribute("value_floats")) {
    tensor.floats = value->reals, tensor.shape = {static_cast<int64_t>(value->reals.size())};
  } else if (const OnnxAttribute* value = attribute("value_int")) {
    tensor.integers = {value->integer}, tensor.integral = true;
  } else if (const OnnxAttribute* value = attribute("value_ints")) {
    tensor.integers = value->integers,
    tensor.shape = {static_cast<int64_t>(value->integers.size())};
    tensor.integral = true;
  } else {
    at.fail("a constant of neither a tensor, floats nor integers");
  }
  Shape shape = tensor.shape;
  at.builder.define(at.node.outputs[0],
                    {shape, kNoTensor, std::make_shared<const OnnxTensor>(std::move(tensor))});
}

void identity(const NodeBuilder& at) {
  at.alias(at.shape(0));
}

void reshape(const NodeBuilder& at) {
  const Shape& x = at.shape(0);
  Shape shape = at.integers(1, "the shape");
  bool zero_is_zero = at.integer("allowzero", 0);
  int64_t open = -1, known = 1;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis] == 0 && !zero_is_zero) {
      at.check(axis < x.size(), "the shape ", text(shape), " for ", text(x));
      shape[axis] = x[axis];
    }
    if (shape[axis] == -1) {
      at.check(open < 0, "the shape leaves two sizes open");
      open = static_cast<int64_t>(axis);
    } else {
      known = checked_product(known, shape[axis]);
    }
  }
  int64_t count = elements(x);
  if (open >= 0) {
    at.check(known > 0 && count % known == 0, "the shape ", text(shape), " for ", text(x));
    shape[open] = count / known;
  }
  at.check(elements(shape) == count, "the shape ", text(shape), " for ", text(x));
  at.alias(shape);
}

void flatten(const NodeBuilder& at) {
  const Shape& x = at.shape(0);
  int64_t axis = at.integer("axis", 1);
  int64_t split = axis == static_cast<int64_t>(x.size()) ? axis : at.axis(axis, x.size());
  int64_t outer = elements(Shape(x.begin(), x.begin() + split));
  at.alias({outer, elements(Shape(x.begin() + split, x.end()))});
}

void squeeze(const NodeBuilder& at) {
  const Shape& x = at.shape(0);
  std::vector<bool> gone(x.size());
  if (at.has(1)) {
    for (int64_t axis : at.integers(1, "axes")) {
      int64_t place = at.axis(axis, x.size());
      at.check(x[place] == 1, "axis ", axis, " of the shape ", text(x));
      gone[place] = true;
    }
  } else {
    for (size_t axis = 0; axis < x.size(); ++axis)
      gone[axis] = x[axis] == 1;
  }
  Shape shape;
  for (size_t axis = 0; axis < x.size(); ++axis)
    if (!gone[axis]) shape.push_back(x[axis]);
  at.alias(shape);
}

void unsqueeze(const NodeBuilder& at) {
  const Shape& x = at.shape(0);
  const std::vector<int64_t>& axes = at.integers(1, "axes");
  Shape shape(x.size() + axes.size(), 0);
  for (int64_t axis : axes) {
    int64_t& place = shape[at.axis(axis, shape.size())];
    at.check(place == 0, "axis ", axis, " twice");
    place = 1;
  }
  auto next = x.begin();
  for (int64_t& size : shape)
    if (size == 0) size = *next++;
  at.alias(shape);
}

// Add a layer that copies elements of the sizes `dims` from view x to view y.
void copy(const NodeBuilder& at, const Shape& dims, View x, View y) {
  MoveLayer layer;
  layer.dims = layer.extent = wide_sizes(at, dims);
  layer.x = x, layer.y = y;
  at.layer(y.tensor, layer);
}

void transpose(const NodeBuilder& at) {
  const Shape& x = at.shape(0);
  std::vector<int64_t> order(x.size());
  std::iota(order.rbegin(), order.rend(), 0);
  if (at.integers("perm")) order = *at.integers("perm");
  std::vector<int64_t> sorted(order);
  std::sort(sorted.begin(), sorted.end());
  for (size_t axis = 0; axis < x.size(); ++axis)
    at.check(sorted.size() == x.size() && sorted[axis] == static_cast<int64_t>(axis),
             "perm is not a permutation");
  Shape dense = dense_strides(x), shape, strides;
  for (int64_t axis : order)
    shape.push_back(x[axis]), strides.push_back(dense[axis]);
  copy(at, shape, {at.tensor(0), 0, wide_strides(strides)},
       {at.output(shape), 0, wide_strides(dense_strides(shape))});
}

void concat(const NodeBuilder& at) {
  Shape shape = at.shape(0);
  int64_t axis = at.axis(at.integer("axis", 0), shape.size());
  shape[axis] = 0;
  for (size_t index = 0; index < at.node.inputs.size(); ++index) {
    Shape x = at.shape(index);
    at.check(x.size() == shape.size(), "inputs of different ranks");
    int64_t size = x[axis];
    x[axis] = shape[axis];
    at.check(x == shape, "inputs whose shapes differ in more than the axis");
    shape[axis] += size;
  }
  Index strides = wide_strides(dense_strides(shape));
  TensorId y = at.output(shape);
  int64_t start = 0;
  for (size_t index = 0; index < at.node.inputs.size(); ++index) {
    const Shape& x = at.shape(index);
    copy(at, x, {at.tensor(index), 0, wide_strides(dense_strides(x))}, {y, start, strides});
    start += x[axis] * dense_strides(shape)[axis];
  }
}

std::vector<int64_t> split_sizes(const NodeBuilder& at, int64_t size) {
  if (at.has(1)) return at.integers(1, "split");
  int64_t parts = static_cast<int64_t>(at.node.outputs.size());
  at.check(at.integer("num_outputs", parts) == parts, "num_outputs is not the number of outputs");
  int64_t each = ceil_div(size, parts);
  std::vector<int64_t> sizes(parts, each);
  sizes.back() = size - each * (parts - 1);
  return sizes;
}

void split(const NodeBuilder& at) {
  const Shape& x = at.shape(0);
  int64_t axis = at.axis(at.integer("axis", 0), x.size());
  std::vector<int64_t> sizes = split_sizes(at, x[axis]);
  int64_t covered = 0;
  for (int64_t size : sizes) {
    at.check(size > 0 && size <= x[axis] - covered, "parts that do not add up to ", x[axis]);
    covered += size;
  }
  at.check(covered == x[axis] && sizes.size() == at.node.outputs.size(), sizes.size(), " parts of ",
           covered, " for ", at.node.outputs.size(), " outputs of ", x[axis]);
  Shape strides = dense_strides(x);
  int64_t start = 0;
  for (size_t index = 0; index < sizes.size(); ++index) {
    Shape part = x;
    part[axis] = sizes[index];
    copy(at, part, {at.tensor(0), start, wide_strides(strides)},
         {at.output(part, index), 0, wide_strides(dense_strides(part))});
    start += sizes[index] * strides[axis];
  }
}

void slice(const NodeBuilder& at) {
  const Shape& x = at.shape(0);
  const auto &starts = at.integers(1, "starts"), &ends = at.integers(2, "ends");
  std::vector<int64_t> axes(starts.size()), steps(starts.size(), 1);
  std::iota(axes.begin(), axes.end(), 0);
  if (at.has(3)) axes = at.integers(3, "axes");
  if (at.has(4)) steps = at.integers(4, "steps");
  at.check(ends.size() == starts.size() && axes.size() == starts.size() &&
               steps.size() == starts.size(),
           "starts, ends, axes and steps of different lengths");
  Shape shape = x, strides = dense_strides(x);
  TensorId source = at.tensor(0);
  int64_t first = 0;
  for (size_t index = 0; index < starts.size(); ++index) {
    int64_t axis = at.axis(axes[index], x.size()), size = x[axis], step = steps[index];
    at.check(step != 0 && step > -kMostSteps && step < kMostSteps, "a step of ", step);
    auto place = [&](int64_t position, int64_t low, int64_t high) {
      return std::clamp(position < 0 ? position + size : position, low, high);
    };
    int64_t from = step > 0 ? place(starts[index], 0, size) : place(starts[index], 0, size - 1);
    int64_t to = step > 0 ? place(ends[index], 0, size) : place(ends[index], -1, size - 1);
    shape[axis] = step > 0 ? std::max<int64_t>(ceil_div(to - from, step), 0)
                           : std::max<int64_t>(ceil_div(from - to, -step), 0);
    first += from * strides[axis];
    strides[axis] *= step;
  }
  at.check(elements(shape) > 0, "the output would have no elements");
  copy(at, shape, {source, first, wide_strides(strides)},
       {at.output(shape), 0, wide_strides(dense_strides(shape))});
}

void pad(const NodeBuilder& at) {
  const Shape& x = at.shape(0);
  at.check(at.string("mode", "constant") == "constant", "mode ", at.string("mode", ""));
  const std::vector<int64_t>& pads = at.integers(1, "pads");
  std::vector<int64_t> axes(x.size());
  std::iota(axes.begin(), axes.end(), 0);
  if (at.has(3)) axes = at.integers(3, "axes");
  at.check(pads.size() == 2 * axes.size(), pads.size(), " pads for ", axes.size(), " axes");
  MoveLayer layer;
  Shape shape = x, offset(x.size(), 0), extent = x, strides = dense_strides(x);
  int64_t start = 0;
  for (size_t index = 0; index < axes.size(); ++index) {
    int64_t axis = at.axis(axes[index], x.size()), before = pads[index],
            after = pads[index + axes.size()];
    for (int64_t size : {before, after})
      at.check(size > -kMostSteps && size < kMostSteps, "a padding of ", size);
    shape[axis] += before + after;
    offset[axis] = std::max<int64_t>(before, 0);
    start += std::max<int64_t>(-before, 0) * strides[axis];
    extent[axis] += std::min<int64_t>(before, 0) + std::min<int64_t>(after, 0);
    at.check(extent[axis] > 0, "pads that remove everything");
  }
  layer.dims = wide_sizes(at, shape), layer.extent = wide_sizes(at, extent);
  layer.offset = wide_strides(offset);
  layer.x = {at.tensor(0), start, wide_strides(strides)};
  layer.y = {at.output(shape), 0, wide_strides(dense_strides(shape))};
  if (at.has(2)) {
    const std::vector<float>& value = at.floats(2, "the padding's value");
    at.check(value.size() == 1, "a padding of ", value.size(), " values");
    layer.fill = value[0];
  }
  at.layer(layer.y.tensor, layer);
}

// Size and factor of every axis after a Resize.
struct Scaling {
  Shape shape;
  std::vector<float> factor;
};

Scaling scaling(const NodeBuilder& at) {
  const Shape& x = at.shape(0);
  std::vector<int64_t> axes(x.size());
  std::iota(axes.begin(), axes.end(), 0);
  if (at.integers("axes")) axes = *at.integers("axes");
  Scaling scaling{x, std::vector<float>(x.size(), 1.0f)};
  bool by_sizes = at.has(3) && !at.integers(3, "sizes").empty();
  at.check(by_sizes || at.has(2), "neither scales nor sizes");
  size_t count = by_sizes ? at.integers(3, "sizes").size() : at.floats(2, "scales").size();
  at.check(count == axes.size(), count, " scales or sizes for ", axes.size(), " axes");
  for (size_t index = 0; index < axes.size(); ++index) {
    int64_t axis = at.axis(axes[index], x.size());
    if (by_sizes) {
      scaling.shape[axis] = at.integers(3, "sizes")[index];
      scaling.factor[axis] = static_cast<float>(scaling.shape[axis]) / static_cast<float>(x[axis]);
    } else {
      scaling.factor[axis] = at.floats(2, "scales")[index];
      float size = std::floor(static_cast<float>(x[axis]) * scaling.factor[axis]);
      at.check(size > 0 && size < kMostSteps, "a size of ", size);
      scaling.shape[axis] = static_cast<int64_t>(size);
    }
    at.check(scaling.shape[axis] > 0 && scaling.shape[axis] < kMostSteps, "a size of ",
             scaling.shape[axis]);
  }
  return scaling;
}

// Function from the coordinate of an output element to its coordinate in the input, on one axis.
using Coordinate = float (*)(float place, float factor, int64_t in, int64_t out);

const std::map<std::string, Coordinate>& coordinates() {
  static const std::map<std::string, Coordinate> table{
      {"half_pixel",
       [](float place, float factor, int64_t, int64_t) { return (place + 0.5f) / factor - 0.5f; }},
      {"pytorch_half_pixel",
       [](float place, float factor, int64_t, int64_t out) {
         return out > 1 ? (place + 0.5f) / factor - 0.5f : 0.0f;
       }},
      {"asymmetric", [](float place, float factor, int64_t, int64_t) { return place / factor; }},
      {"align_corners",
       [](float place, float, int64_t in, int64_t out) {
         return out > 1 ? place * static_cast<float>(in - 1) / static_cast<float>(out - 1) : 0.0f;
       }},
  };
  return table;
}

using Nearest = float (*)(float coordinate);

const std::map<std::string, Nearest>& nearest_modes() {
  static const std::map<std::string, Nearest> table{
      {"round_prefer_floor", [](float at) { return std::ceil(at - 0.5f); }},
      {"round_prefer_ceil", [](float at) { return std::floor(at + 0.5f); }},
      {"floor", [](float at) { return std::floor(at); }},
      {"ceil", [](float at) { return std::ceil(at); }},
  };
  return table;
}

void set_taps(const NodeBuilder& at, ResizeLayer& layer, int64_t out, float factor) {
  auto coordinate = coordinates().find(at.string("coordinate_transformation_mode", "half_pixel"));
  at.check(coordinate != coordinates().end(), "coordinate_transformation_mode ",
           at.string("coordinate_transformation_mode", ""));
  auto nearest = nearest_modes().find(at.string("nearest_mode", "round_prefer_floor"));
  at.check(nearest != nearest_modes().end(), "nearest_mode ", at.string("nearest_mode", ""));
  bool linear = at.string("mode", "nearest") == "linear";
  at.check(linear || at.string("mode", "nearest") == "nearest", "mode ", at.string("mode", ""));
  float last = static_cast<float>(layer.in - 1);
  for (int64_t place = 0; place < out; ++place) {
    float from = coordinate->second(static_cast<float>(place), factor, layer.in, out);
    from = std::clamp(linear ? from : nearest->second(from), 0.0f, last);
    int64_t first = static_cast<int64_t>(from);
    layer.first.push_back(first);
    layer.second.push_back(std::min(first + 1, layer.in - 1));
    layer.weight.push_back(linear ? from - static_cast<float>(first) : 0.0f);
  }
}

// Resize each changed axis by its own layer.
void resize(const NodeBuilder& at) {
  at.check(at.integer("antialias", 0) == 0, "antialias");
  at.check(at.string("keep_aspect_ratio_policy", "stretch") == "stretch",
           "keep_aspect_ratio_policy");
  TensorId from = at.tensor(0);
  Scaling target = scaling(at);
  Shape shape = at.shape(0);
  std::vector<size_t> changed;
  for (size_t axis = 0; axis < shape.size(); ++axis)
    if (target.shape[axis] != shape[axis] || target.factor[axis] != 1) changed.push_back(axis);
  if (changed.empty()) return at.alias(shape);
  for (size_t axis : changed) {
    ResizeLayer layer;
    layer.in = shape[axis];
    layer.outer = elements(Shape(shape.begin(), shape.begin() + static_cast<int64_t>(axis)));
    layer.inner = elements(Shape(shape.begin() + static_cast<int64_t>(axis) + 1, shape.end()));
    set_taps(at, layer, target.shape[axis], target.factor[axis]);
    shape[axis] = target.shape[axis];
    layer.x = from;
    bool last = axis == changed.back();
    layer.y = last ? at.output(shape) : at.builder.new_tensor(at.node.name + ".axis", shape);
    from = layer.y;
    at.layer(layer.y, layer);
  }
}

} // namespace

OperatorTable data_operators() {
  return {{"Constant", constant},   {"Identity", identity}, {"Reshape", reshape},
          {"Flatten", flatten},     {"Squeeze", squeeze},   {"Unsqueeze", unsqueeze},
          {"Transpose", transpose}, {"Concat", concat},     {"Split", split},
          {"Slice", slice},         {"Pad", pad},           {"Resize", resize}};
}

} // namespace mdla
