// Sums of products: convolutions, matrix products, and batch norm, which is folded into a
// convolution or becomes one.
#include "builder.h"

#include <cmath>

namespace mdla {
namespace {

bool is_plain(const Layer& layer) {
  return std::isinf(layer.low) && std::isinf(layer.high);
}

TensorId bias_tensor(const NodeBuilder& at, std::vector<float> values) {
  int64_t count = static_cast<int64_t>(values.size());
  TensorId bias = at.builder.new_constant(at.node.name + ".bias", {count}, std::move(values));
  at.builder.network.tensors[bias].is_bias = true;
  return bias;
}

TensorId channel_bias(const NodeBuilder& at, size_t index, int64_t channels) {
  if (!at.has(index)) return kNoTensor;
  const std::vector<float>& values = at.floats(index, "the bias");
  at.check(static_cast<int64_t>(values.size()) == channels, "a bias of ", values.size(), " for ",
           channels, " channels");
  return bias_tensor(at, values);
}

// Return a view of [N, groups · channels, d, h, w] by image, group, channel and space.
View image_view(TensorId tensor, int64_t groups, int64_t channels, const Spatial& sizes) {
  Shape strides = dense_strides({1, groups, channels, sizes[0], sizes[1], sizes[2]});
  View view{tensor, 0, wide_strides(strides)};
  view.strides[0] = groups * strides[1];
  return view;
}

struct ConvolutionInput {
  Shape x, w;
  int64_t groups;
  SpatialAttributes space;
};

ConvolutionInput convolution_input(const NodeBuilder& at) {
  const Shape& x = at.shape(0);
  const Shape& w = at.constant(1, "the weight").shape;
  at.check(x.size() == w.size() && x.size() >= 3, "a weight of the shape ", text(w),
           " for an input of the shape ", text(x));
  std::vector<int64_t> kernel(w.begin() + 2, w.end());
  at.check(at.integers("kernel_shape", kernel.size(), 0) == kernel || !at.integers("kernel_shape"),
           "kernel_shape is not the weight's");
  int64_t groups = at.integer("group", 1);
  at.check(groups > 0 && x[1] % groups == 0, groups, " groups for ", x[1], " channels");
  return {x, w, groups, spatial_attributes(at, x, kernel)};
}

ConvLayer convolution_layer(const NodeBuilder& at, const ConvolutionInput& input, int64_t channels,
                            const Spatial& out) {
  for (int64_t size : out)
    at.check(size > 0, "the output would have no elements");
  ConvLayer layer;
  layer.images = input.x[0], layer.groups = input.groups;
  layer.cin = input.x[1] / input.groups, layer.cout = channels / input.groups;
  layer.extent = spatial_sizes(input.x);
  layer.window.out = out;
  layer.window.kernel = input.space.kernel, layer.window.dilation = input.space.dilation;
  layer.x = image_view(at.tensor(0), layer.groups, layer.cin, layer.extent);
  TensorId y = at.output(with_spatial(input.x, channels, out));
  layer.y = image_view(y, layer.groups, layer.cout, out);
  layer.bias = channel_bias(at, 2, channels);
  return layer;
}

void conv(const NodeBuilder& at) {
  ConvolutionInput input = convolution_input(at);
  const SpatialAttributes& space = input.space;
  int64_t channels = input.w[0];
  at.check(input.w[1] * input.groups == input.x[1] && channels % input.groups == 0,
           "a weight of the shape ", text(input.w), " for ", input.x[1], " channels in ",
           input.groups, " groups");
  Spatial in = spatial_sizes(input.x), out;
  for (int axis = 0; axis < 3; ++axis) {
    int64_t covered = (space.kernel[axis] - 1) * space.dilation[axis] + 1;
    int64_t room = in[axis] + space.pad[axis] + space.pad_end[axis] - covered;
    out[axis] = room < 0 ? 0 : room / space.stride[axis] + 1;
  }
  ConvLayer layer = convolution_layer(at, input, channels, out);
  layer.window.stride = space.stride;
  layer.pad = space.pad;
  Shape strides = dense_strides(
      {layer.groups, layer.cout, layer.cin, space.kernel[0], space.kernel[1], space.kernel[2]});
  layer.w = {at.tensor(1), 0, wide_strides(strides)};
  at.layer(layer.y.tensor, layer);
}

// Build a transposed convolution: a convolution with the mirrored kernel, whose input has zeros
// between its elements.
void conv_transpose(const NodeBuilder& at) {
  ConvolutionInput input = convolution_input(at);
  const SpatialAttributes& space = input.space;
  at.check(at.string("auto_pad", "NOTSET") == "NOTSET", "auto_pad");
  at.check(!at.integers("output_shape"), "output_shape; give pads");
  at.check(input.w[0] == input.x[1], "a weight of the shape ", text(input.w), " for ", input.x[1],
           " channels");
  auto extra = at.integers("output_padding", space.dims, 0);
  Spatial in = spatial_sizes(input.x), out;
  for (int axis = 0; axis < 3; ++axis) {
    int64_t attribute_index = axis - 3 + static_cast<int64_t>(space.dims);
    out[axis] = (in[axis] - 1) * space.stride[axis] +
                (space.kernel[axis] - 1) * space.dilation[axis] + 1 - space.pad[axis] -
                space.pad_end[axis] + (attribute_index < 0 ? 0 : extra[attribute_index]);
  }
  ConvLayer layer = convolution_layer(at, input, input.w[1] * input.groups, out);
  layer.spread = space.stride;
  layer.window.stride = {1, 1, 1};
  for (int axis = 0; axis < 3; ++axis)
    layer.pad[axis] = (space.kernel[axis] - 1) * space.dilation[axis] - space.pad[axis];
  Shape dense = dense_strides(
      {layer.groups, layer.cin, layer.cout, space.kernel[0], space.kernel[1], space.kernel[2]});
  layer.w = {at.tensor(1),
             elements(space.kernel) - 1,
             {dense[0], dense[2], dense[1], -dense[3], -dense[4], -dense[5]}};
  at.layer(layer.y.tensor, layer);
}

// Return the layer of y[n, m, c] = Σ x[n, m, k] · w[n, k, c]. The rows m are the width of a
// convolution.
ConvLayer matrix_layer(int64_t images, int64_t rows, int64_t depth, int64_t columns) {
  ConvLayer layer;
  layer.images = images, layer.groups = 1, layer.cin = depth, layer.cout = columns;
  layer.window = {{}, {1, 1, rows}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}};
  layer.extent = {1, 1, rows};
  layer.linear = true;
  layer.x.strides = {rows * depth, 0, 1, 0, 0, depth};
  layer.y.strides = {rows * columns, 0, 1, 0, 0, columns};
  layer.w.strides = {0, 1, columns, 0, 0, 0};
  return layer;
}

TensorId scaled_operand(const NodeBuilder& at, size_t index, float factor) {
  if (factor == 1) return at.tensor(index);
  std::vector<float> values = at.floats(index, "the right side of a product with alpha");
  for (float& value : values)
    value *= factor;
  return at.builder.new_constant(at.node.inputs[index], at.shape(index), std::move(values));
}

// Return a bias with one value for each column, or kNoTensor if the input cannot be a bias.
TensorId column_bias(const NodeBuilder& at, size_t index, int64_t columns, float factor) {
  const Value& operand = at.input(index);
  if (!operand.constant || operand.constant->integral) return kNoTensor;
  bool one_row = operand.shape.empty() || elements(operand.shape) == operand.shape.back();
  if (!one_row) return kNoTensor;
  std::vector<float> values = operand.constant->floats;
  at.check(values.size() == 1 || static_cast<int64_t>(values.size()) == columns, "C of the shape ",
           text(operand.shape), " for ", columns, " columns");
  if (values.size() == 1) values.assign(columns, values[0]);
  for (float& value : values)
    value *= factor;
  return bias_tensor(at, std::move(values));
}

void gemm(const NodeBuilder& at) {
  const Shape &a = at.shape(0), &b = at.shape(1);
  at.check(a.size() == 2 && b.size() == 2, "operands of the shapes ", text(a), " and ", text(b));
  bool a_turned = at.integer("transA", 0), b_turned = at.integer("transB", 0);
  int64_t rows = a[a_turned], depth = a[!a_turned], columns = b[!b_turned];
  at.check(b[b_turned] == depth, "operands of the shapes ", text(a), " and ", text(b));
  ConvLayer layer = matrix_layer(1, rows, depth, columns);
  if (a_turned) layer.x.strides = {0, 0, rows, 0, 0, 1};
  if (b_turned) layer.w.strides = {0, depth, 1, 0, 0, 0};
  float beta = at.real("beta", 1);
  layer.x.tensor = at.tensor(0);
  layer.w.tensor = scaled_operand(at, 1, at.real("alpha", 1));
  if (at.has(2)) layer.bias = column_bias(at, 2, columns, beta);
  bool separate = at.has(2) && layer.bias == kNoTensor;
  if (!separate) {
    layer.y.tensor = at.output({rows, columns});
    at.layer(layer.y.tensor, layer);
    return;
  }
  layer.y.tensor = at.builder.new_tensor(at.node.name + ".product", {rows, columns});
  at.layer(layer.y.tensor, layer);
  CombineLayer sum;
  Shape shape{rows, columns};
  sum.dims = wide_sizes(at, shape);
  sum.a = {layer.y.tensor, 0, wide_strides(dense_strides(shape))};
  sum.b = {scaled_operand(at, 2, beta), 0, wide_strides(broadcast_strides(at, at.shape(2), shape))};
  sum.y = {at.output(shape), 0, sum.a.strides};
  at.layer(sum.y.tensor, sum);
}

void matmul(const NodeBuilder& at) {
  Shape a = at.shape(0), b = at.shape(1);
  at.check(!a.empty() && !b.empty(), "a scalar operand");
  bool a_vector = a.size() == 1, b_vector = b.size() == 1;
  if (a_vector) a.insert(a.begin(), 1);
  if (b_vector) b.push_back(1);
  int64_t rows = a[a.size() - 2], depth = a.back(), columns = b.back();
  at.check(b[b.size() - 2] == depth, "operands of the shapes ", text(a), " and ", text(b));
  Shape a_batch(a.begin(), a.end() - 2), b_batch(b.begin(), b.end() - 2);
  int64_t a_images = elements(a_batch), b_images = elements(b_batch);
  Shape batch = broadcast(at, a_batch, b_batch);
  int64_t images = elements(batch);
  at.check((a_images == images || a_images == 1) && (b_images == images || b_images == 1),
           "batches of the shapes ", text(a_batch), " and ", text(b_batch));
  ConvLayer layer = b_images == 1 ? matrix_layer(1, a_images * rows, depth, columns)
                                  : matrix_layer(images, rows, depth, columns);
  if (b_images > 1) layer.w_image_stride = depth * columns;
  if (a_images == 1) layer.x.strides[0] = 0;
  Shape y = batch;
  if (!a_vector) y.push_back(rows);
  if (!b_vector) y.push_back(columns);
  layer.x.tensor = at.tensor(0);
  layer.w.tensor = at.tensor(1);
  layer.y.tensor = at.output(y);
  at.layer(layer.y.tensor, layer);
}

// Factor and offset of each channel in a batch norm.
struct Affine {
  std::vector<float> factor, offset;
};

Affine batch_norm_affine(const NodeBuilder& at, int64_t channels) {
  const char* names[] = {"scale", "B", "mean", "variance"};
  const std::vector<float>* parameters[4];
  for (size_t index = 0; index < 4; ++index) {
    parameters[index] = &at.floats(index + 1, names[index]);
    at.check(static_cast<int64_t>(parameters[index]->size()) == channels, names[index], " of ",
             parameters[index]->size(), " for ", channels, " channels");
  }
  float epsilon = at.real("epsilon", 1e-5f);
  Affine affine{std::vector<float>(channels), std::vector<float>(channels)};
  for (int64_t channel = 0; channel < channels; ++channel) {
    double factor = (*parameters[0])[channel] /
                    std::sqrt(static_cast<double>((*parameters[3])[channel]) + epsilon);
    affine.factor[channel] = static_cast<float>(factor);
    affine.offset[channel] =
        static_cast<float>((*parameters[1])[channel] - (*parameters[2])[channel] * factor);
  }
  return affine;
}

void scale_weights(const ConvLayer& layer, const std::vector<float>& factor,
                   std::vector<float>& weights) {
  const Index& step = layer.w.strides;
  const Spatial& kernel = layer.window.kernel;
  for (int64_t group = 0; group < layer.groups; ++group)
    for (int64_t channel = 0; channel < layer.cout; ++channel)
      for (int64_t k = 0; k < layer.cin; ++k)
        for (int64_t point = 0; point < elements(kernel); ++point) {
          int64_t d = point / (kernel[1] * kernel[2]), h = point / kernel[2] % kernel[1],
                  w = point % kernel[2];
          weights[layer.w.start + group * step[0] + channel * step[1] + k * step[2] + d * step[3] +
                  h * step[4] + w * step[5]] *= factor[group * layer.cout + channel];
        }
}

bool fold(const NodeBuilder& at, const Affine& affine) {
  Layer* producer = at.builder.sole_producer(at.node.inputs[0]);
  if (!producer || !is_plain(*producer)) return false;
  bool convolves = producer->type == "Conv" || producer->type == "ConvTranspose";
  // If the output was reshaped, its channels are different ones.
  bool same = at.builder.network.tensors[producer->output].shape == at.shape(0);
  if (!convolves || !same) return false;
  ConvLayer& layer = std::get<ConvLayer>(producer->operation);
  scale_weights(layer, affine.factor, at.builder.network.tensors[layer.w.tensor].constant);
  std::vector<float> bias(affine.offset);
  if (layer.bias != kNoTensor) {
    std::vector<float>& before = at.builder.network.tensors[layer.bias].constant;
    for (size_t channel = 0; channel < bias.size(); ++channel)
      bias[channel] += before[channel] * affine.factor[channel];
    before = std::move(bias);
  } else {
    layer.bias = bias_tensor(at, std::move(bias));
  }
  return true;
}

void batch_normalization(const NodeBuilder& at) {
  const Shape& x = at.shape(0);
  at.check(at.integer("training_mode", 0) == 0 && at.node.outputs.size() == 1, "training mode");
  at.check(x.size() >= 2 && x.size() <= 5, "an input of ", x.size(), " dimensions");
  Affine affine = batch_norm_affine(at, x[1]);
  if (fold(at, affine)) return at.alias(x);
  ConvLayer layer;
  layer.images = x[0], layer.groups = x[1], layer.cin = layer.cout = 1;
  layer.extent = spatial_sizes(x);
  layer.window = {{}, layer.extent, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}};
  layer.x = image_view(at.tensor(0), x[1], 1, layer.extent);
  layer.w = {at.builder.new_constant(at.node.name + ".scale", {x[1]}, affine.factor),
             0,
             {1, 0, 0, 0, 0, 0}};
  layer.bias = bias_tensor(at, affine.offset);
  layer.y = image_view(at.output(x), x[1], 1, layer.extent);
  at.layer(layer.y.tensor, layer);
}

} // namespace

OperatorTable product_operators() {
  return {{"Conv", conv},
          {"ConvTranspose", conv_transpose},
          {"Gemm", gemm},
          {"MatMul", matmul},
          {"BatchNormalization", batch_normalization}};
}

} // namespace mdla
