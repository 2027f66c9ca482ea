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

// On nodes that are ops in place once groups stand: whether what they write is a view, which is a
// copy then.
c10::Symbol mark() {
  static const auto symbol = c10::Symbol::attr("in_place");
  return symbol;
}

const c10::FunctionSchema* schema_with_aliases(const Node* node) {
  const auto* op = node->maybeOperator();
  const bool says = op && op->aliasAnalysisKind() == c10::AliasAnalysisKind::FROM_SCHEMA;
  return says ? &op->schema() : nullptr;
}

bool may_hold_tensors(const c10::TypePtr& type) {
  const auto inner = type->containedTypes();
  if (inner.empty()) return type->kind() == c10::TypeKind::TensorType || !is_plain(type);
  return std::any_of(inner.begin(), inner.end(), may_hold_tensors);
}

// --- lists
// ----------------------------------------------------------------------------------------

// Whether `use` of a list or tuple takes its elements and leaves nothing that could be told from
// another one with the same elements.
bool is_read(const Use& use) {
  static const std::unordered_set<c10::Symbol> takers{aten::__getitem__, prim::ListUnpack,
                                                      prim::TupleUnpack, prim::TupleIndex};
  if (takers.count(use.user->kind())) return true;
  const auto* schema = schema_with_aliases(use.user);
  return schema && use.offset < schema->arguments().size() &&
         !schema->arguments()[use.offset].alias_info();
}

// The element that a read by a constant index takes; null for other uses.
Value* element(Node* list, const Use& use) {
  if (use.user->kind() != aten::__getitem__) return nullptr;
  const auto constant = torch::jit::toIValue(use.user->input(1));
  if (!constant) return nullptr;
  const auto size = static_cast<int64_t>(list->inputs().size());
  const auto index = constant->toInt() < 0 ? constant->toInt() + size : constant->toInt();
  return index < 0 || index >= size ? nullptr : list->input(index);
}

// Readers get the list as late as can be: after all writes to what it holds. An alias analysis
// takes a list with one reader to hold nothing.
void bring_to_readers(Node* list) {
  const auto uses = list->output()->uses();
  const bool stays_one = uses.size() == 1 && uses[0].user->owningBlock() == list->owningBlock();
  if (stays_one) list->moveBefore(uses[0].user);
  if (!std::all_of(uses.begin(), uses.end(), is_read)) return;
  for (const auto& use : uses) {
    if (auto* value = element(list, use)) {
      use.user->output()->replaceAllUsesWith(value);
      use.user->destroy();
    } else if (!stays_one) {
      auto* copy = list->owningGraph()->createClone(list, [](Value* value) { return value; });
      copy->insertBefore(use.user);
      use.user->replaceInput(use.offset, copy->output());
    }
  }
  if (!list->hasUses()) list->destroy();
}

void bring_lists_to_readers(Block* block) {
  std::vector<Node*> lists;
  for (auto* node : block->nodes()) {
    for (auto* inner : node->blocks())
      bring_lists_to_readers(inner);
    const bool makes = node->kind() == prim::ListConstruct || node->kind() == prim::TupleConstruct;
    if (makes && may_hold_tensors(node->output()->type())) lists.push_back(node);
  }
  // In reverse, so that a list in a tuple moves after the tuple has.
  std::for_each(lists.rbegin(), lists.rend(), bring_to_readers);
}

// --- who shares memory
// ----------------------------------------------------------------------------

bool is_view_to(const DeviceTable& table, const Node* node) {
  const auto* rule = table.rule(node);
  return rule && rule->kind == OpKind::view;
}

class Sharing {
public:
  explicit Sharing(const DeviceTable& table) : table_(table) {}

  // Whether `value` is memory that was not there before its node ran, and that has no other name.
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

  // Whether what `writer` writes, its input `value`, is also seen by something else that is used
  // then or later. Later uses of `value` itself do not count.
  bool is_seen(const Value* value, const Node* writer) const {
    return is_seen(value, writer, [&](const Use& use) {
      return use.user == writer ? use.offset == 0 : !use.user->isBefore(writer);
    });
  }

private:
  template <class Excuse>
  bool is_seen(const Value* value, const Node* writer, Excuse excuse) const {
    const auto& uses = value->uses();
    return std::any_of(uses.begin(), uses.end(), [&](const Use& use) {
      return !excuse(use) && (!use.user->isBefore(writer) || is_seen_through(use, writer));
    });
  }

  // The same of what the user of a value gets from it.
  bool is_seen_through(const Use& use, const Node* writer) const {
    if (use.user->kind() == prim::Return) {
      const auto* owner = use.user->owningBlock()->owningNode();
      return owner->kind() != prim::If || is_seen_later(owner->outputs()[use.offset], writer);
    }
    if (keeps(use)) return true;
    const auto outputs = use.user->outputs();
    return std::any_of(outputs.begin(), outputs.end(), [&](const Value* output) {
      return shares(use.user, output) && is_seen_later(output, writer);
    });
  }

  bool is_seen_later(const Value* value, const Node* writer) const {
    return is_seen(value, writer,
                   [&](const Use& use) { return use.user == writer && use.offset == 0; });
  }

  // Whether the user of a value may keep it where no use of a value tells of it.
  static bool keeps(const Use& use) {
    static const std::unordered_set<c10::Symbol> makers{prim::ListConstruct, prim::TupleConstruct,
                                                        prim::ListUnpack,    prim::TupleUnpack,
                                                        prim::TupleIndex,    prim::ConstantChunk};
    if (makers.count(use.user->kind())) return false;
    const auto* schema = schema_with_aliases(use.user);
    if (!schema || use.offset >= schema->arguments().size()) return true;
    const auto* own = schema->arguments()[use.offset].alias_info();
    return own && own->isWildcardAfter() &&
           std::any_of(schema->arguments().begin(), schema->arguments().end(),
                       [](const c10::Argument& argument) {
                         return argument.alias_info() && argument.alias_info()->isWrite();
                       });
  }

  // Whether `output` of `node` may share memory with an input.
  bool shares(const Node* node, const Value* output) const {
    if (!may_hold_tensors(output->type())) return false;
    const auto* schema = schema_with_aliases(node);
    return !is_tensor(output) || !schema || schema->returns()[output->offset()].alias_info() ||
           may_return_argument(node) || is_view_to(table_, node);
  }

  const DeviceTable& table_;
};

// --- ops in place
// ---------------------------------------------------------------------------------

// The op that returns a new tensor, before `node`; null if the device takes none.
Node* insert_taken(Node* node, c10::Symbol kind, c10::ArrayRef<Value*> inputs,
                   const c10::TypePtr& type, const DeviceTable& table) {
  auto* made = node->owningGraph()->create(kind, inputs);
  made->copyMetadata(node)->insertBefore(node);
  made->output()->setType(type);
  const auto* schema = made->maybeSchema();
  if (schema && !schema->returns()[0].alias_info() && table.rule(made)) return made;
  made->destroy();
  return nullptr;
}

// The op that returns a tensor with something else in the place of a view; it takes that, too,
// behind the view's first argument.
std::optional<c10::Symbol> scatter_kind(c10::Symbol view) {
  if (view == aten::slice) return aten::slice_scatter;
  if (view == aten::select) return aten::select_scatter;
  return std::nullopt;
}

// The views of `block` through which `value` is a part of a tensor, the last one first.
std::vector<Node*> views_behind(Value* value, const Block* block) {
  std::vector<Node*> views;
  for (auto* node = value->node();
       scatter_kind(node->kind()) && node->owningBlock() == block && is_tensor(node->input(0));
       node = node->input(0)->node())
    views.push_back(node);
  return views;
}

// What `node` makes of the tensor that it writes to through `views`, by ops that write nothing,
// before it; null if the device does not take them.
Value* insert_functional(Node* node, const std::vector<Node*>& views, const DeviceTable& table) {
  auto* first = insert_taken(node, *functional_kind(node->kind()), node->inputs(),
                             node->output()->type(), table);
  if (!first) return nullptr;
  std::vector<Node*> made{first->i_(mark(), !views.empty())};
  for (auto* view : views) {
    std::vector<Value*> inputs(view->inputs().begin(), view->inputs().end());
    inputs.insert(inputs.begin() + 1, made.back()->output());
    auto* scatter =
        insert_taken(node, *scatter_kind(view->kind()), inputs, view->input(0)->type(), table);
    if (!scatter) {
      std::for_each(made.rbegin(), made.rend(), [](Node* one) { one->destroy(); });
      return nullptr;
    }
    made.push_back(scatter);
  }
  return made.back()->output();
}

// `views` of `whole`, before `node`: what is written through them later is written to that.
Value* taken_again(Value* whole, const std::vector<Node*>& views, Node* node) {
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
  const Node* switched = nullptr; // the last node that switches modes
  for (auto it = block->nodes().begin(); it != block->nodes().end();) {
    auto* node = *it++;
    for (auto* inner : node->blocks())
      make_functional(inner, table, left_out);
    if (switches_modes(node)) switched = node;
    if (!is_in_place(node) || left_out.count(node)) continue;
    const auto views = views_behind(node->input(0), block);
    auto* written = views.empty() ? node->input(0) : views.back()->input(0);
    if (written->node()->owningBlock() != block || !sharing.is_new(written) ||
        sharing.is_seen(written, node))
      continue;
    // What a tensor's gradient is stays what it was before a write that no gradient is recorded of.
    if (switched && written->node()->isBefore(switched)) continue;
    auto* whole = insert_functional(node, views, table);
    if (!whole) continue;
    written->replaceAllUsesAfterNodeWith(node, whole);
    node->output()->replaceAllUsesWith(taken_again(whole, views, node));
    node->destroy();
  }
}

// The derivatives of these need their results, which may not be written to.
bool is_saved_by_autograd(const Value* value) {
  static const std::unordered_set<c10::Symbol> kinds{
      aten::amax,      aten::amin, aten::cumprod, aten::elu,         aten::exp,         aten::exp2,
      aten::expm1,     aten::celu, aten::norm,    aten::pow,         aten::log_softmax, aten::prod,
      aten::logsumexp, aten::relu, aten::rsqrt,   aten::sigmoid,     aten::reciprocal,  aten::selu,
      aten::softmax,   aten::sqrt, aten::std,     aten::tan,         aten::_softmax,    aten::tanh,
      aten::max,       aten::min,  aten::median,  aten::_log_softmax};
  return kinds.count(value->node()->kind()) != 0;
}

// A group is one node of autograd: it saves a result also where no gradient comes for it.
void restore(Node* node, bool in_group) {
  auto* graph = node->owningGraph();
  auto* self = node->input(0);
  auto* made = graph->create(
      c10::Symbol::fromQualString(std::string(node->kind().toQualString()) + '_'), node->inputs());
  made->copyMetadata(node)->insertBefore(node);
  if (node->i(mark()) || self->uses().size() > 2 || self->node()->kind() == prim::Param ||
      (in_group && is_saved_by_autograd(self))) {
    torch::jit::WithInsertPoint before(made);
    auto* copy = graph->insertNode(graph->create(aten::clone, {self, graph->insertConstant({})}));
    copy->copyMetadata(node)->output()->setType(self->type());
    made->replaceInput(0, copy->output());
  }
  made->output()->copyMetadata(node->output());
  node->output()->replaceAllUsesWith(made->output());
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
  bring_lists_to_readers(graph->block());
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
