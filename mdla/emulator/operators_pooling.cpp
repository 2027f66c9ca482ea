// Pools and spatial means.
#include "builder.h"

#include <algorithm>

namespace mdla {
namespace {

// Return the number of windows along one axis. With ceil_mode, a last window that would start in
// the padding after the input is left out, as PyTorch and ONNX specify.
int64_t pooled_size(int64_t in, int64_t pad, int64_t pad_end, int64_t covered, int64_t stride,
                    bool ceil) {
  int64_t room = in + pad + pad_end - covered;
  if (room < 0) return 0;
  if (!ceil) return room / stride + 1;
  int64_t out = ceil_div(room, stride) + 1;
  return (out - 1) * stride >= in + pad ? out - 1 : out;
}

PoolLayer window_pool(const NodeBuilder& at) {
  const Shape& x = at.shape(0);
  const std::vector<int64_t>* kernel = at.integers("kernel_shape");
  at.check(kernel, "kernel_shape is missing");
  SpatialAttributes space = spatial_attributes(at, x, *kernel);
  PoolLayer layer;
  layer.planes = x[0] * x[1];
  layer.pad = space.pad, layer.pad_end = space.pad_end;
  layer.window = {spatial_sizes(x), {}, space.kernel, space.stride, space.dilation};
  for (int axis = 0; axis < 3; ++axis) {
    int64_t covered = (space.kernel[axis] - 1) * space.dilation[axis] + 1;
    at.check(space.pad[axis] < covered && space.pad_end[axis] < covered,
             "a window of padding alone");
    layer.window.out[axis] =
        pooled_size(layer.window.in[axis], space.pad[axis], space.pad_end[axis], covered,
                    space.stride[axis], at.integer("ceil_mode", 0));
    at.check(layer.window.out[axis] > 0, "the output would have no elements");
  }
  layer.x = at.tensor(0);
  layer.y = at.output(with_spatial(x, x[1], layer.window.out));
  return layer;
}

void max_pool(const NodeBuilder& at) {
  at.check(at.node.outputs.size() == 1 || at.node.outputs[1].empty(), "indices");
  PoolLayer layer = window_pool(at);
  at.layer(layer.y, layer);
}

void average_pool(const NodeBuilder& at) {
  PoolLayer layer = window_pool(at);
  layer.kind = PoolKind::kSum, layer.average = true;
  layer.include_pad = at.integer("count_include_pad", 0);
  at.layer(layer.y, layer);
}

// Pool each whole plane. A plane consists of the dimensions after the first `retained` ones.
void whole_pool(const NodeBuilder& at, PoolKind kind, size_t retained, const Shape& shape) {
  const Shape& x = at.shape(0);
  PoolLayer layer;
  layer.kind = kind, layer.average = kind == PoolKind::kSum;
  layer.x = at.tensor(0);
  layer.planes = elements(Shape(x.begin(), x.begin() + static_cast<int64_t>(retained)));
  int64_t size = elements(x) / layer.planes;
  layer.window = {{1, 1, size}, {1, 1, 1}, {1, 1, size}, {1, 1, 1}, {1, 1, 1}};
  layer.y = at.output(shape);
  at.layer(layer.y, layer);
}

template <PoolKind kind> void global_pool(const NodeBuilder& at) {
  Shape shape = at.shape(0);
  at.check(shape.size() >= 3, "an input of ", shape.size(), " dimensions");
  std::fill(shape.begin() + 2, shape.end(), 1);
  whole_pool(at, kind, 2, shape);
}

void reduce_mean(const NodeBuilder& at) {
  const Shape& x = at.shape(0);
  std::vector<int64_t> axes;
  if (at.integers("axes")) axes = *at.integers("axes");
  if (at.has(1)) axes = at.integers(1, "axes");
  for (int64_t& axis : axes)
    axis = at.axis(axis, x.size());
  std::sort(axes.begin(), axes.end());
  size_t retained = x.size() - axes.size();
  for (size_t index = 0; index < axes.size(); ++index)
    at.check(axes[index] == static_cast<int64_t>(retained + index),
             "axes other than the last ones");
  at.check(!axes.empty(), "no axes");
  Shape shape(x.begin(), x.begin() + static_cast<int64_t>(retained));
  if (at.integer("keepdims", 1)) shape.resize(x.size(), 1);
  whole_pool(at, PoolKind::kSum, retained, shape);
}

} // namespace

OperatorTable pooling_operators() {
  return {{"MaxPool", max_pool},
          {"AveragePool", average_pool},
          {"GlobalMaxPool", global_pool<PoolKind::kMax>},
          {"GlobalAveragePool", global_pool<PoolKind::kSum>},
          {"ReduceMean", reduce_mean}};
}

} // namespace mdla
