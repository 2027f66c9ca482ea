#include "builder.h"

#include <set>

namespace mdla {
namespace {

const OperatorTable& operators() {
  static const OperatorTable table = [] {
    OperatorTable all;
    for (OperatorTable part :
         {product_operators(), pooling_operators(), elementwise_operators(), data_operators()})
      all.merge(part);
    return all;
  }();
  return table;
}

int64_t parse_size(const std::string& word, const std::string& inshapes) {
  require(!word.empty() && word.size() < 16 &&
              word.find_first_not_of("0123456789") == std::string::npos,
          "inshapes \"", inshapes, "\" is not of the form 1x3x224x224;1x8");
  return std::stoll(word);
}

std::vector<Shape> parse_shapes(const std::string& inshapes) {
  std::vector<Shape> shapes;
  std::istringstream inputs(inshapes);
  for (std::string input; std::getline(inputs, input, ';');) {
    Shape shape;
    std::istringstream sizes(input);
    for (std::string size; std::getline(sizes, size, 'x');)
      shape.push_back(parse_size(size, inshapes));
    shapes.push_back(shape);
  }
  return shapes;
}

Shape input_shape(const OnnxInput& input, const Shape* requested) {
  if (!requested) {
    for (int64_t size : input.shape)
      require(size >= 0, "input \"", input.name, "\" leaves a size open: give inshapes");
    require(input.has_shape, "input \"", input.name, "\" has no shape: give inshapes");
    return input.shape;
  }
  bool is_match = !input.has_shape || requested->size() == input.shape.size();
  for (size_t axis = 0; is_match && axis < input.shape.size(); ++axis)
    is_match = input.shape[axis] < 0 || input.shape[axis] == (*requested)[axis];
  require(is_match, "input \"", input.name, "\" of the model is not of the shape ",
          text(*requested), " that inshapes gives");
  return *requested;
}

// Limit on elements and sizes, larger than the memory of any card. Arithmetic of operators on sizes
// up to this limit does not overflow.
constexpr int64_t kMostElements = int64_t{1} << 40;

void check_size(const std::string& name, const Shape& shape) {
  bool fits = elements(shape) <= kMostElements;
  for (int64_t size : shape)
    fits = fits && size <= kMostElements;
  require(fits, "\"", name, "\" of the shape ", text(shape), " is larger than any card");
}

} // namespace

Builder::Builder(const OnnxModel& model, const std::string& inshapes) : model_(model) {
  for (const auto& [name, tensor] : model.initialisers)
    define(name, {tensor.shape, kNoTensor, std::make_shared<const OnnxTensor>(tensor)});
  add_inputs(model, inshapes);
  count_uses(model);
}

void Builder::add_inputs(const OnnxModel& model, const std::string& inshapes) {
  std::vector<Shape> requested = parse_shapes(inshapes);
  require(requested.empty() || requested.size() == model.inputs.size(), "inshapes has ",
          requested.size(), " shapes for ", model.inputs.size(), " inputs");
  for (size_t index = 0; index < model.inputs.size(); ++index) {
    const OnnxInput& input = model.inputs[index];
    require(input.element_type == kOnnxFloat, "input \"", input.name, "\" is not of floats");
    Shape shape = input_shape(input, requested.empty() ? nullptr : &requested[index]);
    require(elements(shape) > 0, "input \"", input.name, "\" has no elements");
    TensorId tensor = new_tensor(input.name, shape);
    define(input.name, {shape, tensor, nullptr});
    network.inputs.push_back({input.name, shape, tensor});
  }
}

void Builder::count_uses(const OnnxModel& model) {
  for (const OnnxNode& node : model.nodes)
    for (const std::string& input : node.inputs)
      ++uses_[input];
  for (const std::string& output : model.outputs)
    ++uses_[output];
}

Network Builder::build() {
  for (const OnnxNode& node : model_.nodes) {
    NodeBuilder at(*this, node);
    auto entry = operators().find(node.type);
    at.check(entry != operators().end() && (node.domain.empty() || node.domain == "ai.onnx"),
             "the device has no such operator");
    at.check(!node.outputs.empty(), "it has no output");
    entry->second(at);
  }
  for (const std::string& name : model_.outputs) {
    Value result = value(name);
    if (result.tensor == kNoTensor) {
      require(!result.constant->integral, "output \"", name, "\" is a constant of integers");
      result.tensor = new_constant(name, result.shape, result.constant->floats);
    }
    network.outputs.push_back({name, result.shape, result.tensor});
  }
  return std::move(network);
}

TensorId Builder::new_tensor(const std::string& name, const Shape& shape) {
  check_size(name, shape);
  require(elements(shape) > 0, "\"", name, "\" would have the shape ", text(shape),
          ", no elements");
  network.tensors.push_back({name, shape, {}, false});
  return static_cast<TensorId>(network.tensors.size()) - 1;
}

TensorId Builder::new_constant(const std::string& name, const Shape& shape,
                               std::vector<float> values) {
  TensorId tensor = new_tensor(name, shape);
  require(static_cast<int64_t>(values.size()) == elements(shape), "constant \"", name, "\" is cut");
  network.tensors[tensor].constant = std::move(values);
  return tensor;
}

Layer& Builder::add_layer(const OnnxNode& node, TensorId output, Operation operation) {
  ++writers_[output];
  producer_[output] = network.layers.size();
  Layer layer;
  layer.name = node.name, layer.type = node.type;
  layer.output = output, layer.operation = std::move(operation);
  network.layers.push_back(std::move(layer));
  return network.layers.back();
}

const Value& Builder::value(const std::string& name) const {
  auto entry = values_.find(name);
  require(entry != values_.end(), "\"", name, "\" is used but nothing makes it");
  return entry->second;
}

void Builder::define(const std::string& name, Value value) {
  check_size(name, value.shape);
  require(values_.emplace(name, std::move(value)).second, "\"", name, "\" is made twice");
}

void Builder::alias(const std::string& of, const std::string& name, const Shape& shape) {
  Value renamed = value(of);
  renamed.shape = shape;
  if (renamed.constant) {
    OnnxTensor reshaped = *renamed.constant;
    reshaped.shape = shape;
    renamed.constant = std::make_shared<const OnnxTensor>(std::move(reshaped));
  }
  if (uses_[of] > 1) shared_[renamed.tensor] = true;
  define(name, std::move(renamed));
}

Layer* Builder::sole_producer(const std::string& name) {
  TensorId tensor = value(name).tensor;
  if (tensor == kNoTensor || uses_[name] != 1 || shared_[tensor] || writers_[tensor] != 1)
    return nullptr;
  return &network.layers[producer_[tensor]];
}

Network make_network(const OnnxModel& model, const std::string& inshapes) {
  return Builder(model, inshapes).build();
}

} // namespace mdla
