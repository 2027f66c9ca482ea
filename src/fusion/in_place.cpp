#include "in_place.h"

#include "aliases.h"

#include <torch/csrc/jit/ir/constants.h>

#include <algorithm>
#include <unordered_set>
#include <vector>

namespace torchmdla {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Use;
using torch::jit::Value;
namespace aten = c10::aten;
namespace attr = c10::attr;
namespace prim = c10::prim;

namespace {

// Attribute of nodes that become ops in place again once groups are formed. Its value specifies
// whether the written tensor is a view; a copy of it is then written.
c10::Symbol mark() {
  static const auto symbol = c10::Symbol::attr("in_place");
  return symbol;
}

const c10::FunctionSchema* schema_with_aliases(const Node* node) {
  const auto* op = node->maybeOperator();
  const bool is_declared = op && op->aliasAnalysisKind() == c10::AliasAnalysisKind::FROM_SCHEMA;
  return is_declared ? &op->schema() : nullptr;
}

bool may_hold_tensors(const c10::TypePtr& type) {
  const auto inner = type->containedTypes();
  if (inner.empty()) return type->kind() == c10::TypeKind::TensorType || !is_plain(type);
  return std::any_of(inner.begin(), inner.end(), may_hold_tensors);
}

// --- lists ---------------------------------------------------------------------------------------

// Return whether `use` of a list or tuple only reads its elements. Another list with the same
// elements would give the same result.
bool is_read(const Use& use) {
  static const std::unordered_set<c10::Symbol> readers{aten::__getitem__, prim::ListUnpack,
                                                       prim::TupleUnpack, prim::TupleIndex};
  if (readers.count(use.user->kind())) return true;
  const auto* schema = schema_with_aliases(use.user);
  return schema && use.offset < schema->arguments().size() &&
         !schema->arguments()[use.offset].alias_info();
}

// Return the element that a read by a constant index accesses, or null for other uses.
Value* element(Node* list, const Use& use) {
  if (use.user->kind() != aten::__getitem__) return nullptr;
  const auto constant = torch::jit::toIValue(use.user->input(1));
  if (!constant) return nullptr;
  const auto size = static_cast<int64_t>(list->inputs().size());
  const auto index = constant->toInt() < 0 ? constant->toInt() + size : constant->toInt();
  return index < 0 || index >= size ? nullptr : list->input(index);
}

// Move `list` or copies of it to its readers, after all writes to its elements. The alias analysis
// assumes that a list with one reader holds nothing.
void sink_list_to_readers(Node* list) {
  const auto uses = list->output()->uses();
  const bool has_one_reader =
      uses.size() == 1 && uses[0].user->owningBlock() == list->owningBlock();
  if (has_one_reader) list->moveBefore(uses[0].user);
  if (!std::all_of(uses.begin(), uses.end(), is_read)) return;
  for (const auto& use : uses) {
    if (auto* value = element(list, use)) {
      use.user->output()->replaceAllUsesWith(value);
      use.user->destroy();
    } else if (!has_one_reader) {
      auto* copy = list->owningGraph()->createClone(list, [](Value* value) { return value; });
      copy->insertBefore(use.user);
      use.user->replaceInput(use.offset, copy->output());
    }
  }
  if (!list->hasUses()) list->destroy();
}

void sink_lists_to_readers(Block* block) {
  std::vector<Node*> lists;
  for (auto* node : block->nodes()) {
    for (auto* inner : node->blocks())
      sink_lists_to_readers(inner);
    const bool is_container =
        node->kind() == prim::ListConstruct || node->kind() == prim::TupleConstruct;
    if (is_container && may_hold_tensors(node->output()->type())) lists.push_back(node);
  }
  // The walk is in reverse, so that a list in a tuple moves after the tuple has moved.
  std::for_each(lists.rbegin(), lists.rend(), sink_list_to_readers);
}

// --- shared memory -------------------------------------------------------------------------------

bool is_device_view(const DeviceTable& table, const Node* node) {
  const auto* rule = table.rule(node);
  return rule && rule->kind == OpKind::view;
}

class Sharing {
public:
  explicit Sharing(const DeviceTable& table) : table_(table) {}

  // Return whether `value` is new memory: it did not exist before its node ran, and no other value
  // aliases it.
  bool is_new(const Value* value) const {
    const auto* node = value->node();
    if (node->hasAttribute(mark())) return true;
    if (node->kind() == prim::If) {
      const auto sides = node->blocks();
      return std::all_of(sides.begin(), sides.end(), [&](const Block* side) {
        const auto* result = side->outputs()[value->offset()];
        return result->uses().size() == 1 && result->node()->owningBlock() == side &&
               is_new(result);
      });
    }
    const auto* schema = schema_with_aliases(node);
    return schema && node->kind().is_aten() && is_tensor(value) && node->blocks().empty() &&
           !schema->returns()[value->offset()].alias_info() && !shares(node, value);
  }

  // Return whether memory that `writer` writes (its input `value`) is also visible through another
  // value that is used then or later. Later uses of `value` itself do not count.
  bool is_visible(const Value* value, const Node* writer) const {
    return is_visible(value, writer, [&](const Use& use) {
      return use.user == writer ? use.offset == 0 : !use.user->isBefore(writer);
    });
  }

private:
  template <class IsExempt>
  bool is_visible(const Value* value, const Node* writer, IsExempt is_exempt) const {
    const auto& uses = value->uses();
    return std::any_of(uses.begin(), uses.end(), [&](const Use& use) {
      return !is_exempt(use) && (!use.user->isBefore(writer) || is_visible_through(use, writer));
    });
  }

  // Return whether the memory is visible through a result of `use.user`.
  bool is_visible_through(const Use& use, const Node* writer) const {
    if (use.user->kind() == prim::Return) {
      const auto* owner = use.user->owningBlock()->owningNode();
      return owner->kind() != prim::If || is_visible_later(owner->outputs()[use.offset], writer);
    }
    if (may_store(use)) return true;
    const auto outputs = use.user->outputs();
    return std::any_of(outputs.begin(), outputs.end(), [&](const Value* output) {
      return shares(use.user, output) && is_visible_later(output, writer);
    });
  }

  bool is_visible_later(const Value* value, const Node* writer) const {
    return is_visible(value, writer,
                      [&](const Use& use) { return use.user == writer && use.offset == 0; });
  }

  // Return whether the user of a value may store it where the uses of values do not show it.
  static bool may_store(const Use& use) {
    static const std::unordered_set<c10::Symbol> constructors{
        prim::ListConstruct, prim::TupleConstruct, prim::ListUnpack,
        prim::TupleUnpack,   prim::TupleIndex,     prim::ConstantChunk};
    if (constructors.count(use.user->kind())) return false;
    const auto* schema = schema_with_aliases(use.user);
    if (!schema || use.offset >= schema->arguments().size()) return true;
    const auto* alias_info = schema->arguments()[use.offset].alias_info();
    return alias_info && alias_info->isWildcardAfter() &&
           std::any_of(schema->arguments().begin(), schema->arguments().end(),
                       [](const c10::Argument& argument) {
                         return argument.alias_info() && argument.alias_info()->isWrite();
                       });
  }

  // Return whether `output` of `node` may share memory with an input.
  bool shares(const Node* node, const Value* output) const {
    if (!may_hold_tensors(output->type())) return false;
    const auto* schema = schema_with_aliases(node);
    return !is_tensor(output) || !schema || schema->returns()[output->offset()].alias_info() ||
           may_return_argument(node) || is_device_view(table_, node);
  }

  const DeviceTable& table_;
};

// --- ops in place --------------------------------------------------------------------------------

// Insert the op that returns a new tensor before `node`. Return null if the device does not support
// it.
Node* insert_functional_op(Node* node, c10::Symbol kind, c10::ArrayRef<Value*> inputs,
                           const c10::TypePtr& type, const DeviceTable& table) {
  auto* op = node->owningGraph()->create(kind, inputs);
  op->copyMetadata(node)->insertBefore(node);
  op->output()->setType(type);
  const auto* schema = op->maybeSchema();
  if (schema && !schema->returns()[0].alias_info() && table.rule(op)) return op;
  op->destroy();
  return nullptr;
}

// Return the op that returns a tensor in which a view is replaced by another tensor. That tensor is
// its second argument; the other arguments are those of the view.
std::optional<c10::Symbol> scatter_kind(c10::Symbol view) {
  if (view == aten::slice) return aten::slice_scatter;
  if (view == aten::select) return aten::select_scatter;
  return std::nullopt;
}

// Return the views of `block` that lead from a tensor to `value`, the last one first.
std::vector<Node*> views_leading_to(Value* value, const Block* block) {
  std::vector<Node*> views;
  for (auto* node = value->node();
       scatter_kind(node->kind()) && node->owningBlock() == block && is_tensor(node->input(0));
       node = node->input(0)->node())
    views.push_back(node);
  return views;
}

// Insert functional ops before `node` that compute the tensor which `node` writes to through
// `views`. Return the tensor after the write, or null if the device does not support the ops.
Value* insert_functional_ops(Node* node, const std::vector<Node*>& views,
                             const DeviceTable& table) {
  auto* first = insert_functional_op(node, *functional_kind(node->kind()), node->inputs(),
                                     node->output()->type(), table);
  if (!first) return nullptr;
  std::vector<Node*> ops{first->i_(mark(), !views.empty())};
  for (auto* view : views) {
    std::vector<Value*> inputs(view->inputs().begin(), view->inputs().end());
    inputs.insert(inputs.begin() + 1, ops.back()->output());
    auto* scatter = insert_functional_op(node, *scatter_kind(view->kind()), inputs,
                                         view->input(0)->type(), table);
    if (!scatter) {
      std::for_each(ops.rbegin(), ops.rend(), [](Node* op) { op->destroy(); });
      return nullptr;
    }
    ops.push_back(scatter);
  }
  return ops.back()->output();
}

// Insert `views` of `whole` before `node` and return the last one. Later writes through the result
// of `node` then become writes to `whole`.
Value* retake_views(Value* whole, const std::vector<Node*>& views, Node* node) {
  if (!node->output()->hasUses()) return whole;
  for (auto view = views.rbegin(); view != views.rend(); ++view) {
    auto* copy = node->owningGraph()->createClone(*view, [](Value* value) { return value; });
    copy->insertBefore(node)->replaceInput(0, whole);
    whole = copy->output();
  }
  return whole;
}

void make_functional(Block* block, const DeviceTable& table, const NodeSet& left_out) {
  const Sharing sharing(table);
  const Node* last_mode_switch = nullptr; // the last node that switches modes
  for (auto it = block->nodes().begin(); it != block->nodes().end();) {
    auto* node = *it++;
    for (auto* inner : node->blocks())
      make_functional(inner, table, left_out);
    if (switches_modes(node)) last_mode_switch = node;
    if (!is_in_place(node) || left_out.count(node)) continue;
    const auto views = views_leading_to(node->input(0), block);
    auto* written = views.empty() ? node->input(0) : views.back()->input(0);
    if (written->node()->owningBlock() != block || !sharing.is_new(written) ||
        sharing.is_visible(written, node))
      continue;
    // A write that autograd does not record leaves the tensor's gradient as it was. A functional op
    // would not.
    if (last_mode_switch && written->node()->isBefore(last_mode_switch)) continue;
    auto* whole = insert_functional_ops(node, views, table);
    if (!whole) continue;
    written->replaceAllUsesAfterNodeWith(node, whole);
    node->output()->replaceAllUsesWith(retake_views(whole, views, node));
    node->destroy();
  }
}

// Return whether the derivative of the operator that made `value` needs its result, which must then
// not be overwritten.
bool is_saved_by_autograd(const Value* value) {
  static const std::unordered_set<c10::Symbol> kinds{
      aten::amax,      aten::amin, aten::cumprod, aten::elu,         aten::exp,         aten::exp2,
      aten::expm1,     aten::celu, aten::norm,    aten::pow,         aten::log_softmax, aten::prod,
      aten::logsumexp, aten::relu, aten::rsqrt,   aten::sigmoid,     aten::reciprocal,  aten::selu,
      aten::softmax,   aten::sqrt, aten::std,     aten::tan,         aten::_softmax,    aten::tanh,
      aten::max,       aten::min,  aten::median,  aten::_log_softmax};
  return kinds.count(value->node()->kind()) != 0;
}

// Replace `node` by its op in place, which writes to a copy where necessary. A group is one
// autograd node: it saves results even if no gradient reaches them.
void restore(Node* node, bool in_group) {
  auto* graph = node->owningGraph();
  auto* self = node->input(0);
  auto* op = graph->create(
      c10::Symbol::fromQualString(std::string(node->kind().toQualString()) + '_'), node->inputs());
  op->copyMetadata(node)->insertBefore(node);
  if (node->i(mark()) || self->uses().size() > 2 || self->node()->kind() == prim::Param ||
      (in_group && is_saved_by_autograd(self))) {
    torch::jit::WithInsertPoint before(op);
    auto* copy = graph->insertNode(graph->create(aten::clone, {self, graph->insertConstant({})}));
    copy->copyMetadata(node)->output()->setType(self->type());
    op->replaceInput(0, copy->output());
  }
  op->output()->copyMetadata(node->output());
  node->output()->replaceAllUsesWith(op->output());
  node->destroy();
}

} // namespace

std::optional<c10::Symbol> functional_kind(c10::Symbol kind) {
  std::string name = kind.toQualString();
  if (!kind.is_aten() || !name.ends_with('_') || name.ends_with("__")) return std::nullopt;
  name.pop_back();
  return c10::Symbol::fromQualString(name);
}

bool is_in_place(const Node* node) {
  if (!functional_kind(node->kind())) return false;
  const auto* schema = schema_with_aliases(node);
  if (!schema || schema->arguments().empty() || schema->returns().size() != 1) return false;
  const auto writes = [](const c10::Argument& argument) {
    return argument.alias_info() && argument.alias_info()->isWrite();
  };
  const auto& arguments = schema->arguments();
  return writes(arguments[0]) && writes(schema->returns()[0]) &&
         std::none_of(arguments.begin() + 1, arguments.end(), writes);
}

void make_functional(const std::shared_ptr<Graph>& graph, const DeviceTable& table,
                     const NodeSet& left_out) {
  sink_lists_to_readers(graph->block());
  make_functional(graph->block(), table, left_out);
}

void restore_in_place(Block* block, bool in_group) {
  for (auto it = block->nodes().begin(); it != block->nodes().end();) {
    auto* node = *it++;
    for (auto* inner : node->blocks())
      restore_in_place(inner, in_group);
    if (node->hasAttribute(attr::Subgraph))
      restore_in_place(node->g(attr::Subgraph)->block(), /*in_group=*/true);
    if (node->hasAttribute(mark())) restore(node, in_group);
  }
}

} // namespace torchmdla
