#include "canonical.h"

#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>
#include <torch/csrc/jit/passes/lower_tuples.h>

#include <algorithm>
#include <functional>
#include <string>
#include <unordered_map>

namespace torchmdla {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

namespace {

using Values = std::vector<Value*>;

Value* constant(Node* before, const c10::IValue& value) {
  const torch::jit::WithInsertPoint guard(before);
  return before->owningGraph()->insertConstant(value);
}

// Return `value` in contiguous memory. Strides and offsets of a lazy tensor refer to contiguous
// memory, but the value that represents it may have other strides.
Value* contiguous(Node* before, Value* value) {
  const auto format = constant(before, static_cast<int64_t>(c10::MemoryFormat::Contiguous));
  auto* node = before->owningGraph()->create(c10::aten::contiguous, {value, format});
  node->insertBefore(before);
  node->output()->setType(value->type());
  return node->output();
}

void replace(Node* node, c10::Symbol kind, const Values& inputs) {
  auto* replacement = node->owningGraph()->create(kind, inputs, node->outputs().size());
  replacement->insertBefore(node);
  for (size_t i = 0; i < node->outputs().size(); ++i) {
    replacement->output(i)->copyMetadata(node->output(i));
    node->output(i)->replaceAllUsesWith(replacement->output(i));
  }
}

// Replace the first output of a node; the new node has only that one.
void replace_first(Node* node, c10::Symbol kind, const Values& inputs) {
  auto* replacement = node->owningGraph()->create(kind, inputs);
  replacement->insertBefore(node);
  replacement->output()->copyMetadata(node->output(0));
  node->output(0)->replaceAllUsesWith(replacement->output());
}

bool only_first_is_used(const Node* node) {
  const auto outputs = node->outputs();
  return std::none_of(outputs.begin() + 1, outputs.end(),
                      [](const Value* value) { return value->hasUses(); });
}

bool is_false(const Value* value) {
  const auto known = torch::jit::constant_as<bool>(value);
  return known && !*known;
}

using Rewrite = std::function<void(Node*)>;

Rewrite rename_to(const char* name) {
  const auto kind = c10::Symbol::fromQualString(name);
  return [kind](Node* node) { replace(node, kind, node->inputs().vec()); };
}

Rewrite keep_first_output(const char* name) {
  const auto kind = c10::Symbol::fromQualString(name);
  return [kind](Node* node) {
    if (only_first_is_used(node)) replace_first(node, kind, node->inputs().vec());
  };
}

void remove_node(Node* node) {
  node->output()->replaceAllUsesWith(node->input(0));
}

// Rewrite a view with another dtype or shape. The JIT does not find an operator for a node of
// `aten::view.dtype`.
void rewrite_view(Node* node) {
  if (node->input(1)->type()->kind() == c10::TypeKind::IntType)
    node->replaceInput(0, contiguous(node, node->input(0)));
  else
    replace(node, c10::aten::reshape, {node->input(0), node->input(1)});
}

// Return a rewrite for an operator with strides, which refer to contiguous memory.
Rewrite strided(const char* name) {
  const auto kind = c10::Symbol::fromQualString(name);
  return [kind](Node* node) {
    auto inputs = node->inputs().vec();
    inputs[0] = contiguous(node, inputs[0]);
    replace(node, kind, inputs);
  };
}

void rewrite_reshape_alias(Node* node) {
  replace(node, c10::aten::reshape, {node->input(0), node->input(1)});
}

void rewrite_batch_norm(Node* node) {
  constexpr size_t training = 5;
  if (!is_false(node->input(training)) || !only_first_is_used(node)) return;
  auto inputs = node->inputs().vec();
  inputs.push_back(constant(node, /*cudnn_enabled=*/true));
  replace_first(node, c10::aten::batch_norm, inputs);
}

// Replace flash attention by the operator without the sums that are saved for gradients. Flash
// attention accepts key and value heads that are shared, hence `enable_gqa`.
void rewrite_flash_attention(Node* node) {
  if (!only_first_is_used(node)) return;
  enum { query, key, value, dropout, is_causal, mask, scale };
  const auto inputs = node->inputs();
  replace_first(node, c10::aten::scaled_dot_product_attention,
                {inputs[query], inputs[key], inputs[value], inputs[mask], inputs[dropout],
                 inputs[is_causal], inputs[scale], constant(node, /*enable_gqa=*/true)});
}

at::ScalarType widest(at::ScalarType dtype) {
  return at::isFloatingType(dtype) ? at::kDouble : at::kLong;
}

// Return a number of a range: a constant, or the input that the lowering made of it. Return null
// for any other value.
Value* range_number(Value* value, at::ScalarType wide) {
  auto* maker = value->node();
  if (maker->kind() == c10::prim::Constant) {
    const bool is_integer = value->type()->kind() == c10::TypeKind::IntType;
    return is_integer || wide == at::kDouble ? value : nullptr;
  }
  if (maker->kind() != c10::aten::ScalarImplicit) return nullptr;
  const auto type = maker->input()->type()->cast<c10::TensorType>();
  const auto dtype = type ? type->scalarType() : std::nullopt;
  return dtype == at::kLong || dtype == wide ? maker->input() : nullptr;
}

std::optional<int64_t> known_integer(const Value* value) {
  const auto known = torch::jit::toIValue(value);
  return known && known->isInt() ? std::optional(known->toInt()) : std::nullopt;
}

// Return `start + step * i` for `count` values of i. It is computed as in eager PyTorch, in the
// widest dtype.
Value* make_range(Node* before, Value* start, Value* step, int64_t count,
                  const c10::TensorTypePtr& type) {
  const auto call = [&](c10::Symbol kind, const Values& inputs, at::ScalarType dtype) {
    auto* op = before->owningGraph()->create(kind, inputs)->insertBefore(before);
    return op->output()->setType(type->withScalarType(dtype));
  };
  const auto number = [&](auto value) { return constant(before, static_cast<int64_t>(value)); };
  auto* none = constant(before, c10::IValue());
  const auto range = [&](Value* begin, Value* end, Value* distance, at::ScalarType dtype) {
    return call(c10::aten::arange, {begin, end, distance, number(dtype), none, none, none}, dtype);
  };
  const auto first = known_integer(start), distance = known_integer(step);
  if (first && distance)
    return range(start, number(*first + count * *distance), step, *type->scalarType());
  const auto wide = widest(*type->scalarType());
  auto* indices = range(number(0), number(count), number(1), wide);
  auto* scaled = call(c10::aten::mul, {indices, step}, wide);
  auto* moved = call(c10::aten::add, {scaled, start, number(1)}, wide);
  auto* no = constant(before, false);
  return call(c10::aten::to, {moved, number(*type->scalarType()), no, no, none},
              *type->scalarType());
}

// Rewrite a range. PyTorch's lazy device writes a range into a tensor that it allocates, and makes
// inputs of its numbers. The size, and thus the end, is known. Start and step may vary (positions
// in a text).
void rewrite_arange(Node* node) {
  constexpr size_t start = 0, step = 2, out = 3;
  if (node->inputs().size() != 4 || node->input(out)->type()->kind() != c10::TypeKind::TensorType)
    return;
  const auto type = node->output()->type()->cast<c10::TensorType>();
  const auto sizes = type->sizes().concrete_sizes();
  if (!sizes || sizes->size() != 1 || !type->scalarType()) return;
  auto* first = range_number(node->input(start), widest(*type->scalarType()));
  auto* distance = range_number(node->input(step), widest(*type->scalarType()));
  if (!first || !distance) return;
  node->output()->replaceAllUsesWith(make_range(node, first, distance, (*sizes)[0], type));
  node->destroy(); // no other pass removes a node that writes
}

// Rewrite a factory operator, whose result is not the tensor that the device allocated for it.
void rewrite_zero(Node* node) {
  auto* none = constant(node, c10::IValue());
  replace(node, c10::aten::zeros_like, {node->input(), none, none, none, none, none});
}

// Replace a constant tensor, as which the lowering wrote a number, by the number.
void rewrite_number(Node* node) {
  const auto known = torch::jit::constant_as<at::Tensor>(node->input());
  if (known && known->dim() == 0)
    node->output()->replaceAllUsesWith(constant(node, c10::IValue(known->item())));
}

const std::unordered_map<std::string, Rewrite>& rewrites() {
  static const std::unordered_map<std::string, Rewrite> table{
      {"aten::alias_copy", remove_node},
      {"aten::detach_copy", remove_node},
      {"aten::lift_fresh_copy", remove_node},
      {"aten::diagonal_copy", rename_to("aten::diagonal")},
      {"aten::expand_copy", rename_to("aten::expand")},
      {"aten::permute_copy", rename_to("aten::permute")},
      {"aten::select_copy", rename_to("aten::select")},
      {"aten::slice_copy", rename_to("aten::slice")},
      {"aten::squeeze_copy", rename_to("aten::squeeze")},
      {"aten::t_copy", rename_to("aten::t")},
      {"aten::transpose_copy", rename_to("aten::transpose")},
      {"aten::unfold_copy", rename_to("aten::unfold")},
      {"aten::unsqueeze_copy", rename_to("aten::unsqueeze")},
      {"aten::view_copy", rewrite_view},
      {"aten::_reshape_alias_copy", rewrite_reshape_alias},
      {"aten::arange", rewrite_arange},
      {"aten::as_strided_copy", strided("aten::as_strided")},
      {"aten::as_strided_scatter", strided("aten::as_strided_scatter")},
      {"aten::FloatImplicit", rewrite_number},
      {"aten::IntImplicit", rewrite_number},
      {"aten::ScalarImplicit", rewrite_number},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", rewrite_flash_attention},
      {"aten::zero", rewrite_zero},
      {"aten::_adaptive_avg_pool2d", rename_to("aten::adaptive_avg_pool2d")},
      {"aten::log_sigmoid_forward", keep_first_output("aten::log_sigmoid")},
      {"aten::max_pool2d_with_indices", keep_first_output("aten::max_pool2d")},
      {"aten::max_pool3d_with_indices", keep_first_output("aten::max_pool3d")},
      {"aten::native_batch_norm", rewrite_batch_norm},
  };
  return table;
}

} // namespace

void make_canonical(const std::shared_ptr<Graph>& graph) {
  // The attribute has the Python location that made the IR. It would make equal nodes differ.
  const auto source = c10::Symbol::attr("source");
  torch::jit::LowerSimpleTuples(graph);
  const std::vector<Node*> nodes(graph->nodes().begin(), graph->nodes().end());
  for (auto* node : nodes) {
    if (node->hasAttribute(source)) node->removeAttribute(source);
    const auto rewrite = rewrites().find(node->kind().toQualString());
    // Nodes that a rewrite makes are not visited again, so a rewrite may keep the operator.
    if (rewrite != rewrites().end()) rewrite->second(node);
  }
  torch::jit::EliminateDeadCode(graph);
}

} // namespace torchmdla
