#include "structure.h"

#include "base/byte_key.h"
#include "packed_weights.h"
#include "runtime/quantisation.h"
#include "signature.h"

#include <ATen/core/ivalue.h>
#include <torch/csrc/jit/ir/constants.h>

#include <bit>
#include <unordered_map>

namespace torchmdla {

using torch::jit::AttributeKind;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

namespace {

class StructureWriter {
public:
  void write(Graph& graph) {
    inputs(graph.inputs());
    for (const auto* node : graph.nodes())
      write(node);
    values(graph.outputs());
  }

  bool is_whole() const { return is_whole_; }
  const std::string& bytes() const { return key_.bytes(); }
  ByteKey& key() { return key_; }

private:
  template <class Values> void inputs(const Values& values) {
    key_.add(values.size());
    for (const auto* input : values) {
      number(input);
      type(*input->type());
    }
  }

  void write(const Node* node) {
    key_.add(std::string_view(node->kind().toQualString()));
    const auto* schema = node->maybeSchema();
    key_.add(std::string_view(schema ? schema->overload_name() : ""));
    values(node->inputs());
    key_.add(node->outputs().size());
    for (const auto* output : node->outputs())
      number(output);
    is_whole_ &= node->blocks().empty();
    if (node->kind() == c10::prim::Constant) return constant(node);
    if (node->kind() == c10::prim::ListConstruct) type(*node->output()->type());
    for (const auto name : node->attributeNames())
      attribute(node, name);
  }

  // Add a type. The observations of a tracer are left out of tensor types, because files do not
  // keep them.
  void type(const c10::Type& type) {
    key_.add(std::string_view(type.kind() == c10::TypeKind::TensorType ? "Tensor"
                                                                       : type.annotation_str()));
  }

  void constant(const Node* node) {
    const auto value = torch::jit::toIValue(node->output());
    if (!value) return void(is_whole_ = false);
    type(*node->output()->type());
    constant(*value);
  }

  void constant(const c10::IValue& value) {
    if (value.isDouble()) return key_.add(std::bit_cast<int64_t>(value.toDouble()));
    if (value.isTensor() && value.toTensor().defined()) return tensor(value.toTensor());
    if (const auto weights = unpacked(value)) return packed(*weights);
    Signature signature;
    is_whole_ &= append_signature(value, signature);
    key_.add_list(signature);
  }

  void tensor(const at::Tensor& tensor) {
    is_whole_ &= tensor.device().is_cpu() && tensor.layout() == at::kStrided &&
                 (!tensor.is_quantized() || quantisation_of(tensor));
    if (!is_whole_) return;
    if (const auto quantisation = quantisation_of(tensor)) {
      key_.add(std::bit_cast<int64_t>(quantisation->scale));
      key_.add(quantisation->zero_point);
    }
    key_.add(static_cast<int64_t>(tensor.scalar_type()));
    key_.add_list(tensor.sizes());
    key_.add_list(tensor.strides());
    // A tensor with dimensions is a weight, which compiled code receives as an argument.
    if (tensor.dim() != 0) return;
    key_.add(std::string_view(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()));
  }

  void packed(const PackedWeights& weights) {
    key_.add(std::string_view(weights.kind));
    key_.add_list(weights.geometry);
    key_.add(weights.has_zero_points);
    key_.add(weights.has_bias);
    for (const auto& element : weights.tensors)
      tensor(element);
  }

  void attribute(const Node* node, c10::Symbol name) {
    key_.add(std::string_view(name.toQualString()));
    switch (node->kindOf(name)) {
    case AttributeKind::i:
      return key_.add(node->i(name));
    case AttributeKind::is:
      return key_.add_list(node->is(name));
    case AttributeKind::s:
      return key_.add(std::string_view(node->s(name)));
    default:
      is_whole_ = false;
    }
  }

  template <class Values> void values(const Values& values) {
    key_.add(values.size());
    for (const auto* value : values)
      key_.add(numbers_.at(value));
  }

  void number(const Value* value) { numbers_.emplace(value, numbers_.size()); }

  ByteKey key_;
  std::unordered_map<const Value*, size_t> numbers_;
  bool is_whole_ = true;
};

} // namespace

std::optional<Structure> structure_of(Graph& graph, const std::string& device,
                                      const std::vector<int64_t>& parameters) {
  StructureWriter writer;
  writer.key().add(std::string_view(device));
  writer.key().add_list(parameters);
  writer.write(graph);
  if (!writer.is_whole()) return std::nullopt;
  return sha256(std::as_bytes(std::span(writer.bytes())));
}

} // namespace torchmdla
