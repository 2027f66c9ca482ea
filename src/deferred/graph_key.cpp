#include "graph_key.h"

#include "base/byte_key.h"

#include <sstream>
#include <unordered_map>

namespace torchmdla {

using torch::jit::AttributeKind;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

namespace {

bool is_float_constant(const Node* node) {
  return node->kind() == c10::prim::Constant && node->hasAttribute(c10::attr::value) &&
         node->output()->type()->kind() == c10::TypeKind::FloatType;
}

class KeyWriter {
public:
  explicit KeyWriter(Graph& graph) {
    for (const auto* input : graph.inputs()) {
      number(input);
      text(input->type()->repr_str());
    }
    for (const auto* node : graph.nodes())
      write(node);
    values(graph.outputs());
  }

  std::string take() { return key_.take(); }

private:
  void write(const Node* node) {
    integer(static_cast<int64_t>(static_cast<c10::unique_t>(node->kind())));
    values(node->inputs());
    integer(static_cast<int64_t>(node->outputs().size()));
    for (const auto* output : node->outputs())
      number(output);
    if (is_float_constant(node)) return;
    if (!node->blocks().empty()) return write_text(*node);
    // Operators that differ only in dtype or layout differ in their constants. The attribute of a
    // constant determines its type, except for None.
    for (const auto name : node->attributeNames()) {
      integer(static_cast<int64_t>(static_cast<c10::unique_t>(name)));
      attribute(node, name);
    }
    if (node->kind() == c10::prim::Constant || node->kind() == c10::prim::ListConstruct)
      text(node->output()->type()->repr_str());
  }

  void attribute(const Node* node, c10::Symbol name) {
    const auto kind = node->kindOf(name);
    integer(static_cast<int64_t>(kind));
    switch (kind) {
    case AttributeKind::i:
      return integer(node->i(name));
    case AttributeKind::is:
      return key_.add_list(node->is(name));
    case AttributeKind::s:
      return text(node->s(name));
    case AttributeKind::t:
      return tensor(node->t(name));
    default:
      return write_text(*node);
    }
  }

  // Add a tensor. Numbers that are tensors are created anew for each graph, so their values are
  // compared.
  void tensor(const at::Tensor& tensor) {
    integer(tensor.dim());
    if (tensor.dim() != 0 || !tensor.device().is_cpu())
      return integer(reinterpret_cast<intptr_t>(tensor.unsafeGetTensorImpl()));
    integer(static_cast<int64_t>(tensor.scalar_type()));
    text({static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()});
  }

  void write_text(const Node& node) {
    std::ostringstream stream;
    stream << node;
    text(stream.str());
  }

  template <class Values> void values(const Values& values) {
    integer(static_cast<int64_t>(values.size()));
    for (const auto* value : values)
      integer(numbers_.at(value));
  }

  void number(const Value* value) {
    numbers_.emplace(value, static_cast<int64_t>(numbers_.size()));
  }

  void integer(int64_t integer) { key_.add(integer); }
  void text(std::string_view text) { key_.add(text); }

  ByteKey key_;
  std::unordered_map<const Value*, int64_t> numbers_;
};

} // namespace

std::vector<Node*> float_constants(Graph& graph) {
  std::vector<Node*> constants;
  for (auto* node : graph.nodes())
    if (is_float_constant(node)) constants.push_back(node);
  return constants;
}

std::string graph_key(Graph& graph) {
  return KeyWriter(graph).take();
}

} // namespace torchmdla
