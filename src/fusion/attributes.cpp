#include "attributes.h"

#include <algorithm>

namespace torchmdla {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;
namespace attr = c10::attr;
namespace prim = c10::prim;

namespace {

// Return whether `node` runs code that the graph does not show on objects among its inputs.
bool hides_effects_on_objects(const Node* node) {
  if (node->kind() == prim::SetAttr || !node->hasSideEffects()) return false;
  return std::any_of(node->inputs().begin(), node->inputs().end(), [](const Value* input) {
    return input->type()->kind() == c10::TypeKind::ClassType ||
           input->type()->kind() == c10::TypeKind::InterfaceType;
  });
}

void collect_mutated_attributes(const Block* block, MutatedAttributes& mutated) {
  for (const auto* node : block->nodes()) {
    if (node->kind() == prim::SetAttr) mutated.names.insert(node->s(attr::name));
    mutated.any |= hides_effects_on_objects(node) || node->kind() == prim::fork ||
                   node->kind() == prim::CallMethod || node->kind() == prim::CallFunction;
    for (const auto* inner : node->blocks())
      collect_mutated_attributes(inner, mutated);
  }
}

void hoist_from(Block* block, const MutatedAttributes& mutated) {
  for (auto* node : block->nodes())
    for (auto* inner : node->blocks()) {
      hoist_from(inner, mutated);
      if (node->kind() != prim::If) continue;
      for (auto it = inner->nodes().begin(); it != inner->nodes().end();) {
        auto* candidate = *it++;
        if (candidate->kind() == prim::GetAttr && !mutated.contains(candidate->s(attr::name)) &&
            !node_in_block(candidate->input()->node(), inner))
          candidate->moveBefore(node);
      }
    }
}

bool is_scalar(const c10::TypePtr& type) {
  switch (type->kind()) {
  case c10::TypeKind::IntType:
  case c10::TypeKind::FloatType:
  case c10::TypeKind::BoolType:
  case c10::TypeKind::StringType:
  case c10::TypeKind::NoneType:
    return true;
  case c10::TypeKind::OptionalType:
    return is_scalar(type->expectRef<c10::OptionalType>().getElementType());
  default:
    return false;
  }
}

// Return the indices of inputs that the node's schema names running mean and variance.
std::vector<size_t> statistics_of(const Node* node) {
  std::vector<size_t> inputs;
  if (const auto* schema = node->maybeSchema())
    for (const auto* argument : {"running_mean", "running_var"})
      if (const auto index = schema->argumentIndexWithName(argument)) inputs.push_back(*index);
  return inputs;
}

// Return whether `value` is a module among the graph's inputs, or a submodule of one.
bool is_module(const Value* value) {
  while (value->node()->kind() == prim::GetAttr)
    value = value->node()->input();
  return value->node()->kind() == prim::Param && value->type()->kind() == c10::TypeKind::ClassType;
}

// Return whether the results of `node` come from attributes. Its blocks, if any, must come from
// attributes.
bool is_derived_from_attributes(const Node* node, const ValueSet& known) {
  if (node->kind() == prim::GetAttr) return is_module(node->input());
  if (node->kind() == prim::Loop) return false;
  return std::all_of(node->inputs().begin(), node->inputs().end(),
                     [&](const Value* input) { return known.count(input) != 0; }) &&
         std::all_of(node->outputs().begin(), node->outputs().end(),
                     [](const Value* output) { return is_scalar(output->type()); }) &&
         !node->hasSideEffects() && !node->isNondeterministic();
}

// Return whether `node` extracts an element of a tuple, or casts an optional value.
bool extracts_element(const Node* node) {
  return node->kind() == prim::unchecked_cast || node->kind() == prim::TupleIndex ||
         node->kind() == prim::TupleUnpack;
}

// Walk over a graph that collects the scalars that come from attributes.
class AttributeWalk {
public:
  // `arguments` are the inputs of a graph.
  explicit AttributeWalk(c10::ArrayRef<const Value*> arguments)
      : externals_(arguments.begin(), arguments.end()) {}

  // Collect the scalars of `block`. Return whether all values that it computes come from
  // attributes.
  bool collect(const Block* block) {
    bool all = true;
    for (const auto* node : block->nodes()) {
      bool is_derived = true;
      for (const auto* inner : node->blocks())
        is_derived &= collect(inner);
      is_derived =
          (is_derived && is_derived_from_attributes(node, scalars_)) || is_presence_test(node);
      if (is_derived)
        for (const auto* output : node->outputs())
          if (is_scalar(output->type())) scalars_.insert(output);
      collect_externals(node);
      all &= is_derived;
    }
    return all && std::all_of(block->outputs().begin(), block->outputs().end(),
                              [&](const Value* output) { return scalars_.count(output) != 0; });
  }

  ValueSet take_scalars() { return std::move(scalars_); }

private:
  // Return whether `node` is `argument is None`. The presence of an argument is fixed for a call,
  // as an attribute is.
  bool is_presence_test(const Node* node) const {
    if (node->kind() != c10::aten::__is__ && node->kind() != c10::aten::__isnot__) return false;
    return std::all_of(node->inputs().begin(), node->inputs().end(),
                       [&](const Value* input) { return externals_.count(input) != 0; });
  }

  void collect_externals(const Node* node) {
    if (node->kind() == prim::If) return collect_externals_of_branch(node);
    if (is_constant(node) || (node->kind() == prim::GetAttr && is_module(node->input())) ||
        (extracts_element(node) && externals_.count(node->input(0))))
      externals_.insert(node->outputs().begin(), node->outputs().end());
  }

  void collect_externals_of_branch(const Node* node) {
    if (!scalars_.count(node->input())) return;
    for (size_t i = 0; i < node->outputs().size(); ++i)
      if (std::all_of(node->blocks().begin(), node->blocks().end(),
                      [&](const Block* side) { return externals_.count(side->outputs()[i]) != 0; }))
        externals_.insert(node->outputs()[i]);
  }

  ValueSet scalars_;
  ValueSet externals_; // arguments, attributes, constants and elements of these
};

} // namespace

MutatedAttributes mutated_attributes(const Graph& graph) {
  MutatedAttributes mutated;
  collect_mutated_attributes(graph.block(), mutated);
  return mutated;
}

void hoist_attributes(const std::shared_ptr<Graph>& graph, const MutatedAttributes& mutated) {
  if (!mutated.any) hoist_from(graph->block(), mutated);
}

std::unordered_set<std::string> running_statistics(const Block* block) {
  std::unordered_set<std::string> names;
  for (const auto* node : block->nodes()) {
    for (const auto* inner : node->blocks())
      names.merge(running_statistics(inner));
    for (const size_t index : statistics_of(node)) {
      const auto* source = node->input(index)->node();
      if (source->kind() == prim::GetAttr) names.insert(source->s(attr::name));
    }
  }
  return names;
}

bool is_only_a_running_statistic(const Value* value) {
  return std::all_of(value->uses().begin(), value->uses().end(), [](const torch::jit::Use& use) {
    const auto statistics = statistics_of(use.user);
    return std::find(statistics.begin(), statistics.end(), use.offset) != statistics.end();
  });
}

ValueSet values_from_attributes(const Block* block) {
  AttributeWalk walk(block->inputs());
  walk.collect(block);
  return walk.take_scalars();
}

std::vector<const Node*> add_producers(const Value* value, NodeSet& producers) {
  std::vector<const Node*> added;
  std::vector<Node*> worklist{const_cast<Value*>(value)->node()};
  while (!worklist.empty()) {
    auto* node = worklist.back();
    worklist.pop_back();
    if (!producers.insert(node).second) continue;
    added.push_back(node);
    for_each_input(node, [&](Value* input) { worklist.push_back(input->node()); });
  }
  return added;
}

} // namespace torchmdla
