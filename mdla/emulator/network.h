// A network between ONNX and the device program: layers over tensors, every size known, weights as
// floats, nothing yet of tiles, formats or addresses.
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
  std::vector<float> constant; // weights; empty for what is computed
  bool is_bias = false;        // stored as accumulators are
};

// Where the elements of an operand are: the element `start` of the tensor, and steps from it.
struct View {
  TensorId tensor = kNoTensor;
  int64_t start = 0;
  Index strides{};
};

// Convolutions, and all that is a sum of products: for each image n and group,
// y[n, g, c, out] = bias[g, c] + Σ x[n, g, k, in] · w[g, c, k, kernel].
struct ConvLayer {
  int64_t images = 0, groups = 0, cin = 0, cout = 0; // channels of one group
  Window window;                                     // in: without padding, after spreading
  Spatial pad{};                                     // before the first element
  Spatial spread{1, 1, 1};                           // zeros between elements of the input (+ 1)
  Spatial extent{};                                  // elements of the input
  View x;                                            // n, g, k, d, h, w
  View w;                                            // g, c, k, d, h, w
  int64_t w_image_stride = 0;                        // of a computed right side
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

// A copy from view to view, and a function on the way. Along each dimension, the elements
// [offset, offset + extent) of y come from x, the others are `fill`.
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

// Reads `inshapes` ("1x3x224x224;1x8", "" for the model's own) and checks every node: a Fault names
// the node and what the device refuses of it.
Network make_network(const OnnxModel& model, const std::string& inshapes);

} // namespace mdla
