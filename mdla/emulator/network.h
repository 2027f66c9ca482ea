// Intermediate form between ONNX and the device program: layers over tensors. All sizes are known,
// and weights are floats. It does not have tiles, number formats or addresses yet.
#pragma once

#include "onnx_model.h"
#include "program.h"

#include <limits>
#include <string>
#include <variant>
#include <vector>

namespace mdla {

using TensorId = int; // index of Network::tensors

inline constexpr TensorId kNoTensor = -1;

struct Tensor {
  std::string name;
  Shape shape;
  std::vector<float> constant; // weights; empty if the tensor is computed
  bool is_bias = false;        // stored in the format of accumulators
};

// Strided view of an operand's elements. `start` is the index of its first element in the tensor.
struct View {
  TensorId tensor = kNoTensor;
  int64_t start = 0;
  Index strides{};
};

// Convolution, or another sum of products. For each image n and group g,
// y[n, g, c, out] = bias[g, c] + Σ x[n, g, k, in] · w[g, c, k, kernel].
struct ConvLayer {
  int64_t images = 0, groups = 0, cin = 0, cout = 0; // channels are those of one group
  Window window;                                     // `in`: without padding, after spreading
  Spatial pad{};                                     // padding before the first element
  Spatial spread{1, 1, 1};                           // zeros between input elements, plus 1
  Spatial extent{};                                  // elements of the input
  View x;                                            // n, g, k, d, h, w
  View w;                                            // g, c, k, d, h, w
  int64_t w_image_stride = 0;                        // stride of n in w; 0 if images share w
  View y;                                            // n, g, c, d, h, w
  TensorId bias = kNoTensor;
  bool linear = false;
};

struct PoolLayer {
  PoolKind kind = PoolKind::kMax;
  bool average = false, include_pad = false;
  int64_t planes = 0;
  Window window;
  Spatial pad{}, pad_end{};
  TensorId x = kNoTensor, y = kNoTensor;
};

struct CombineLayer {
  CombineKind kind = CombineKind::kAdd;
  Index dims{};
  View a, b, y;
};

// Copy from one view to another, with an optional function. Along each dimension, the elements
// [offset, offset + extent) of y come from x, and the others are `fill`.
struct MoveLayer {
  Index dims{}, offset{}, extent{};
  View x, y;
  double fill = 0;
  Function function = Function::kNone;
  double parameter = 0;
};

struct SoftmaxLayer {
  int64_t outer = 0, columns = 0, inner = 0;
  TensorId x = kNoTensor, y = kNoTensor;
};

struct ResizeLayer {
  int64_t outer = 0, in = 0, inner = 0;
  std::vector<int64_t> first, second;
  std::vector<double> weight;
  TensorId x = kNoTensor, y = kNoTensor;
};

using Operation =
    std::variant<ConvLayer, PoolLayer, CombineLayer, MoveLayer, SoftmaxLayer, ResizeLayer>;

struct Layer {
  std::string name, type;
  TensorId output = kNoTensor;
  double low = -std::numeric_limits<double>::infinity(); // results are clamped to this interval
  double high = std::numeric_limits<double>::infinity();
  Operation operation;
};

struct Network {
  std::vector<Tensor> tensors;
  std::vector<Layer> layers;
  struct Port {
    std::string name;
    Shape shape;
    TensorId tensor;
  };
  std::vector<Port> inputs, outputs;
};

// Build the network of a model. `inshapes` is "1x3x224x224;1x8", or "" for the model's own shapes.
// Throw Fault, which names the node and the reason, if the device does not support a node.
Network make_network(const OnnxModel& model, const std::string& inshapes);

} // namespace mdla
