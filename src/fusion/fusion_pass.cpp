#include "fusion_pass.h"

#include "aliases.h"
#include "attributes.h"
#include "graph_values.h"
#include "in_place.h"
#include "input_paths.h"
#include "list_appends.h"
#include "memory_order.h"
#include "waits.h"

#include <torch/csrc/jit/passes/dead_code_elimination.h>
#include <torch/csrc/jit/passes/remove_mutation.h>
#include <torch/csrc/jit/passes/utils/subgraph_utils.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <queue>
#include <variant>

// Algorithm that finds groups
//
// Every node of a block has a level. Consider the paths to the node along data and memory
// dependencies: the level is the largest number of steps from a supported node to an unsupported
// one. Supported nodes of one level can form one group. A path between two of them through an
// unsupported node would raise the level, so the set is convex. One walk over the block suffices,
// without trial moves.
//
// Ops in place on memory that only they access are functional ops during the pass (in_place.h).
//
// Constants and lists are not nodes in this sense: each user gets a copy. A view that is used
// outside of its own group stays in the block, and every group that uses it gets a copy. The
// group's input is then the base of the view, so that a weight is recognised as one.
//
// Nodes that switch modes (`with torch.no_grad()`) stay after all earlier nodes and before all
// later ones. A group is therefore in one mode, and a view that is used in another mode is not
// copied.
//
// A branch that only a module's attributes decide (`if self.training`) joins a group as a whole if
// the device supports all nodes of either side. Its condition becomes a flag of the group. At run
// time, groups are formed again for the flag values of a call (mode_specialised_group.h).
// Assertions join as well, because they must keep their order with possible effects of the other
// side.

namespace torchmdla {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;
namespace prim = c10::prim;
namespace attr = c10::attr;

c10::Symbol group_symbol() {
  static const auto symbol = c10::Symbol::fromQualString("mdla::CompilationGroup");
  return symbol;
}

c10::Symbol acap_group_symbol() {
  static const auto symbol = c10::Symbol::fromQualString("acap::CompilationGroup");
  return symbol;
}

c10::Symbol device_attribute() {
  static const auto symbol = c10::Symbol::attr("device");
  return symbol;
}

c10::Symbol parameters_attribute() {
  static const auto symbol = c10::Symbol::attr("parameters");
  return symbol;
}

c10::Symbol flags_attribute() {
  static const auto symbol = c10::Symbol::attr("flags");
  return symbol;
}

c10::Symbol written_attribute() {
  static const auto symbol = c10::Symbol::attr("written");
  return symbol;
}

bool has_external_writes(const Node* group) {
  return group->hasAttribute(written_attribute());
}

c10::Symbol varying_attribute() {
  static const auto symbol = c10::Symbol::attr("varying");
  return symbol;
}

std::vector<int64_t> varying_inputs(const Node* group) {
  return group->hasAttribute(varying_attribute()) ? group->is(varying_attribute())
                                                  : std::vector<int64_t>{};
}

c10::Symbol first_run_attribute() {
  static const auto symbol = c10::Symbol::attr("first_run");
  return symbol;
}

void mark_first_run(Block* block) {
  for (auto* node : block->nodes()) {
    if (node->kind() == group_symbol()) node->i_(first_run_attribute(), 1);
    for (auto* inner : node->blocks())
      mark_first_run(inner);
  }
}

std::string describe(Refusal refusal, const std::string& device) {
  const auto of_device = [&](const char* what) { return "device '" + device + "' " + what; };
  switch (refusal) {
  case Refusal::unsupported_operator:
    return of_device("has no such operator");
  case Refusal::unsupported_dtype:
    return of_device("does not take the dtype of its inputs or results");
  case Refusal::argument_value:
    return of_device("does not take it with these arguments");
  case Refusal::effects:
    return "it has effects: it writes to memory that others see, or draws random numbers";
  case Refusal::written_view:
    return "it is a view that the program writes through";
  case Refusal::other_mode:
    return "it is a view that is used where gradients are recorded otherwise";
  case Refusal::value_type:
    return "it takes or returns what is neither a tensor nor a number";
  case Refusal::changing_integer:
    return "it takes an integer that a loop changes";
  case Refusal::data_dependent_length:
    return "the data of a mask decides how long its result is";
  case Refusal::left_out:
    return "it could not be compiled";
  case Refusal::not_worth_it:
    return "it is alone: a group of it would save nothing";
  case Refusal::failed_pass:
    return "the pass that forms groups failed on its graph, which is as it was";
  }
  return "";
}

std::string group_name(const std::shared_ptr<Graph>& subgraph) {
  constexpr size_t longest = 60;
  return torch::jit::SubgraphUtils::generateNameForGraph(subgraph, longest, "mdla");
}

namespace {

using NodeVisitor = std::function<void(Node*)>;

// Data that all blocks of a graph share.
struct Fusion {
  const DeviceTable& table;
  const OpenConditions open_conditions;
  const bool joins_training;
  const bool joins_lone;
  const c10::Symbol group_kind;
  const Aliases& aliases;
  const ValueSet parameters; // inputs of the graph that are module attributes
  const bool has_external_writes;
  const ValueSet uninitialised;
  const ValueSet from_attributes;
  // Values that change in loops. A group with such an input would be compiled again in every
  // iteration.
  const ValueSet changing;
  // Attributes that norms update, at least in some branch, without incrementing their version.
  const std::unordered_set<std::string> statistics;
  // Attributes that the graph itself sets: states, which differ between calls.
  const std::unordered_set<std::string> states;
  const NodeSet left_out; // nodes that join no group
  const std::function<void(const Ungrouped&)>& ungrouped;
};

bool computes_with_tensors(const Node* node) {
  const auto is_tensor_or_list = [](const Value* value) {
    return is_tensor(value) || is_tensor_list(value);
  };
  const auto kind = node->kind();
  return (!kind.is_prim() || kind == prim::PythonOp) &&
         std::any_of(node->outputs().begin(), node->outputs().end(), is_tensor_or_list);
}

// Nodes of one block that move into a subgraph, in the block's order.
using Group = std::vector<Node*>;

// Pass that finds and forms the groups of one block.
class BlockFuser {
public:
  BlockFuser(Block* block, const Fusion& fusion, ValueSet shape_tensors = {})
      : block_(block), fusion_(fusion), table_(fusion.table), aliases_(fusion.aliases),
        memory_order_(block, fusion.table, fusion.aliases),
        shape_tensors_(std::move(shape_tensors)) {
    is_regrouped_ = std::any_of(block_->nodes().begin(), block_->nodes().end(),
                                [&](const Node* node) { return depends_on_attributes(node); });
    trains_ = std::any_of(block_->nodes().begin(), block_->nodes().end(),
                          [&](const Node* node) { return trains(node); });
    for (auto* node : block_->nodes())
      classify(node);
  }

  // Determine the groups without changing the graph.
  void find_groups() {
    for (auto* node : block_->nodes())
      position_[node] = position_.size();
    do {
      for (auto* node : block_->nodes())
        assign_level(node);
      form_candidates();
    } while (exclude_sunk_effects());
    keep_profitable_groups();
  }

  bool is_grouped(const Node* node) const { return group_of_.count(node) != 0; }

  // Report the operators that compute with tensors and are in no group.
  void report_ungrouped() const {
    for (const auto* node : block_->nodes()) {
      if (is_grouped(node) || is_copied(node) || !computes_with_tensors(node)) continue;
      const auto refusal = refusals_.find(node);
      const auto kind = kinds_.find(node);
      if (refusal != refusals_.end())
        fusion_.ungrouped({node, refusal->second});
      else if (kind != kinds_.end() && is_computation(kind->second))
        fusion_.ungrouped({node, Refusal::not_worth_it});
    }
  }

  size_t form_groups() {
    if (groups_.empty()) return 0;
    for (auto* node : order())
      move_to_end(node);
    // The alias analysis knows only the values that exist before groups are formed.
    std::vector<bool> written;
    for (const auto& group : groups_)
      written.push_back(has_external_writes(group));
    for (size_t k = 0; k < groups_.size(); ++k)
      extract(groups_[k], written[k]);
    return groups_.size();
  }

private:
  // --- nodes that the device supports ------------------------------------------------------------

  using Verdict = std::variant<OpKind, Refusal>;

  void classify(Node* node) {
    if (is_copied(node)) return;
    auto verdict = kind_of(node);
    // A group gets a copy of the view, which would record gradients in the group's mode.
    if (verdict == Verdict(OpKind::view) && is_used_in_other_mode(node))
      verdict = Refusal::other_mode;
    if (const auto* kind = std::get_if<OpKind>(&verdict))
      kinds_[node] = *kind;
    else
      refusals_[node] = std::get<Refusal>(verdict);
  }

  static bool is_computation(OpKind kind) {
    return kind == OpKind::compute || kind == OpKind::cheap;
  }

  bool is_supported(const Node* node) const { return kinds_.count(node) != 0; }

  bool is_view(const Node* node) const {
    const auto entry = kinds_.find(node);
    return entry != kinds_.end() && entry->second == OpKind::view;
  }

  // Return whether users get a copy of `node`: a constant, or a list that is not written to.
  bool is_copied(const Node* node) const {
    if (is_constant(node)) return true;
    return node->kind() == prim::ListConstruct && !aliases_.has_writers(node->output()) &&
           (is_tensor_list(node->output()) || is_plain(node->output()->type()));
  }

  bool is_used_in_other_mode(const Node* node) const {
    return std::any_of(node->outputs().begin(), node->outputs().end(), [&](const Value* value) {
      return is_used_in_other_mode(value, memory_order_.mode(node));
    });
  }

  // Return whether a node of this block uses `value`, directly or through a list, in another mode.
  bool is_used_in_other_mode(const Value* value, size_t mode) const {
    return std::any_of(value->uses().begin(), value->uses().end(), [&](const auto& use) {
      const auto* user = node_in_block(use.user, block_);
      if (!user || user == block_->return_node()) return false;
      return is_copied(user) ? is_used_in_other_mode(user->output(), mode)
                             : memory_order_.mode(user) != mode;
    });
  }

  Verdict kind_of(Node* node) {
    if (fusion_.left_out.count(node)) return Refusal::left_out;
    if (is_in_place(node))
      return updates_attribute(node) ? Verdict(OpKind::shape) : Refusal::effects;
    if (indexes_by_mask(node)) return Refusal::data_dependent_length;
    const auto to_verdict = [](std::optional<OpKind> kind) {
      return kind ? Verdict(*kind) : Refusal::value_type;
    };
    if (node->kind() == prim::If) return to_verdict(kind_of_branch(node));
    if (unpacks(node)) return to_verdict(kind_of_unpacking(node));
    return kind_of_operator(node);
  }

  Verdict kind_of_operator(Node* node) {
    const auto* rule = table_.rule(node);
    if (!rule) return table_.has(node) ? Refusal::unsupported_dtype : Refusal::unsupported_operator;
    if (const auto refusal = check_conditions(node, *rule)) return *refusal;
    if (const auto refusal = check_inputs(node)) return *refusal;
    if (!has_supported_outputs(node, *rule)) return Refusal::value_type;
    if (rule->kind == OpKind::item && !shape_tensors_.count(node->input(0)))
      return Refusal::value_type;
    if (fusion_.joins_lone && rule->kind == OpKind::shape && takes_free_numbers(node))
      return Refusal::value_type;
    if (follow_shape_tensors(node, shape_tensors_)) return OpKind::shape;
    // An element of a list of tensors is the same tensor.
    const bool picks_tensor = rule->kind == OpKind::shape && is_tensor(node->output(0));
    auto kind = picks_tensor || may_return_argument(node) ? OpKind::view : rule->kind;
    if (kind == OpKind::view && trains(node)) kind = OpKind::cheap; // dropout
    // A view that the program writes through must remain a view of its base.
    if (kind == OpKind::view && aliases_.has_output_writers(node)) return Refusal::written_view;
    return kind;
  }

  // Return whether `node` computes numbers from other numbers than constants and those of this
  // block's groups, such as sizes. Without PyTorch no code is compiled for their values in a call.
  bool takes_free_numbers(const Node* node) const {
    const auto is_number = [](const Value* value) {
      return !is_tensor(value) && !is_tensor_list(value);
    };
    const auto all_are_numbers = [&](const auto& values) {
      return std::all_of(values.begin(), values.end(), is_number);
    };
    return all_are_numbers(node->inputs()) && all_are_numbers(node->outputs()) &&
           std::any_of(node->inputs().begin(), node->inputs().end(), [&](const Value* value) {
             const auto* producer = value->node();
             return !is_constant(producer) && !is_supported(producer) && !is_copied(producer);
           });
  }

  // Return why the conditions of `node` keep it out of groups, or nullopt. A node that may have
  // effects can join on the condition that it has none. A call that violates the condition runs the
  // subgraph unchanged and in order.
  std::optional<Refusal> check_conditions(const Node* node, const OpRule& rule) const {
    const auto unless = [](bool is_supported, Refusal refusal) {
      return is_supported ? std::nullopt : std::optional(refusal);
    };
    switch (table_.conditions(node, rule)) {
    case Conditions::met:
      return unless(!memory_order_.has_effects(node), Refusal::effects);
    case Conditions::open:
      return unless(fusion_.open_conditions == OpenConditions::assume_met, Refusal::argument_value);
    case Conditions::training:
      return unless(fusion_.joins_training, Refusal::argument_value);
    case Conditions::violated:
      break;
    }
    return Refusal::argument_value;
  }

  std::optional<OpKind> kind_of_branch(Node* node) {
    if (fusion_.open_conditions != OpenConditions::assume_met || uses_uninitialised_values(node))
      return std::nullopt;
    if (fusion_.from_attributes.count(node->input())) return kind_of_attribute_branch(node);
    // An assertion joins to keep its order with effects that other branches of the group may have.
    return is_regrouped_ && is_assertion(node) ? std::optional(OpKind::shape) : std::nullopt;
  }

  // Return whether `node` reads or returns an uninitialised value. A group reads its inputs and
  // writes its outputs whichever branch runs, and reading an uninitialised value fails.
  bool uses_uninitialised_values(Node* node) const {
    bool is_uninitialised = false;
    const auto note = [&](const Value* value) {
      is_uninitialised |= fusion_.uninitialised.count(value) != 0;
    };
    for_each_input(node, [&](Value* value) {
      if (node_in_block(value->node(), block_) != node) note(value);
    });
    std::for_each(node->outputs().begin(), node->outputs().end(), note);
    return is_uninitialised;
  }

  // Return the kind of a branch that attributes decide: the best kind of its two sides. The nodes
  // that compute its condition stay outside of groups.
  std::optional<OpKind> kind_of_attribute_branch(Node* node) {
    for (const auto* output : node->outputs())
      if (!is_plain(output->type()) || aliases_.has_writers(output)) return std::nullopt;
    std::optional<OpKind> best;
    for (auto* side : node->blocks())
      if (const auto kind = BlockFuser(side, fusion_, shape_tensors_).kind_of_whole())
        best = std::min(*kind, best.value_or(*kind));
    if (best)
      for (const auto* producer : add_producers(node->input(), condition_producers_))
        kinds_.erase(producer);
    return best;
  }

  // Return the value of this block, one side of a branch, to a group. The value is compute, cheap,
  // or shape if it is worth nothing. nullopt means that the block cannot join a group as a whole.
  std::optional<OpKind> kind_of_whole() const {
    auto best = OpKind::shape;
    for (const auto* node : block_->nodes()) {
      if (is_copied(node)) continue;
      if (!is_supported(node)) return std::nullopt;
      if (kinds_.at(node) != OpKind::view) best = std::min(best, kinds_.at(node));
    }
    const auto outputs = block_->outputs();
    const bool varies = std::any_of(outputs.begin(), outputs.end(), [&](const Value* value) {
      return fusion_.changing.count(value) != 0;
    });
    return varies ? std::nullopt : std::optional(best);
  }

  std::optional<OpKind> kind_of_unpacking(const Node* node) const {
    if (aliases_.has_output_writers(node)) return std::nullopt;
    if (node->kind() == prim::ListUnpack && !is_supported(node->input()->node()))
      return std::nullopt;
    return table_.supports_type(node->input()) ? std::optional(OpKind::view) : std::nullopt;
  }

  std::optional<Refusal> check_inputs(const Node* node) const {
    for (const auto* value : node->inputs())
      if (const auto refusal = check_input(value)) return refusal;
    return std::nullopt;
  }

  std::optional<Refusal> check_input(const Value* value) const {
    const auto* producer = value->node();
    if (is_constant(producer)) return std::nullopt;
    if (fusion_.uninitialised.count(value)) return Refusal::value_type;
    if (is_copied(producer)) return check_inputs(producer);
    // The elements of a list of tensors from outside (a module's weights) become inputs of the
    // group.
    if (is_tensor_list(value) && (is_supported(producer) || !aliases_.has_writers(value)))
      return std::nullopt;
    if (is_tensor_list(value) || !is_plain(value->type())) return Refusal::value_type;
    return fusion_.changing.count(value) ? std::optional(Refusal::changing_integer) : std::nullopt;
  }

  // Return whether the outputs of `node` fit a group. A group cannot return a list of tensors. Only
  // a view may make one, and only `prim::ListUnpack` in this block may use it. The two can sink
  // together.
  bool has_supported_outputs(const Node* node, const OpRule& rule) const {
    return std::all_of(node->outputs().begin(), node->outputs().end(), [&](const Value* value) {
      if (!is_tensor_list(value)) return is_plain(value->type());
      return rule.kind == OpKind::view &&
             std::all_of(value->uses().begin(), value->uses().end(), [&](const auto& use) {
               return use.user->kind() == prim::ListUnpack && use.user->owningBlock() == block_;
             });
    });
  }

  // --- levels ----------------------------------------------------------------------------------

  void assign_level(Node* node) {
    size_t level = 0;
    const auto needs = [&](Node* before) {
      const bool is_boundary = is_supported(before) && !is_supported(node);
      level = std::max(level, level_[before] + (is_boundary ? 1 : 0));
    };
    // Lists are looked through: the user of a list depends on its elements.
    NodeSet expanded;
    const auto copied = [&](const Node* producer) { return is_copied(producer); };
    for_each_provider(node, copied, expanded, needs);
    level_[node] = level;
  }

  // Visit the nodes of this block that must come before `node`. `copied` reports the producers that
  // `node` gets a copy of; these are looked through. `expanded` is shared by the nodes of a
  // group, so that each producer is looked through once.
  void for_each_provider(Node* node, const std::function<bool(const Node*)>& copied,
                         NodeSet& expanded, const NodeVisitor& visit) const {
    const std::function<void(Value*)> visit_value = [&](Value* value) {
      auto* producer = node_in_block(value->node(), block_);
      if (!producer || producer == node || producer == block_->param_node()) return;
      if (!copied(producer)) return visit(producer);
      if (!expanded.insert(producer).second) return;
      for (auto* input : producer->inputs())
        visit_value(input);
    };
    for_each_input(node, visit_value);
    for (auto* before : memory_order_.before(node))
      visit(before);
  }

  // --- groups ----------------------------------------------------------------------------------

  // Collect the supported nodes of each level, without the views that sink.
  void form_candidates() {
    candidates_.clear();
    for (auto* node : block_->nodes())
      if (is_supported(node)) candidates_[level_[node]].push_back(node);
    for (auto& [level, group] : candidates_)
      sink_views(group);
  }

  // Exclude sunk views with effects from groups. Return whether there were any. A view that sinks
  // runs after its group, and each group that uses it gets a copy. A view with effects (dropout,
  // whose mode only a call knows) would draw again in each copy. It would also run after members
  // that must follow it.
  bool exclude_sunk_effects() {
    NodeSet inside;
    for (const auto& [level, group] : candidates_)
      inside.insert(group.begin(), group.end());
    bool any = false;
    for (auto* node : block_->nodes()) {
      if (!is_supported(node) || inside.count(node) || !memory_order_.has_effects(node)) continue;
      kinds_.erase(node);
      refusals_[node] = Refusal::effects;
      any = true;
    }
    return any;
  }

  void keep_profitable_groups() {
    for (auto& [level, group] : candidates_) {
      if (!is_profitable(group)) continue;
      for (const auto* node : group)
        group_of_[node] = groups_.size();
      groups_.push_back(std::move(group));
    }
  }

  // Remove the views that leave `group`, which would be returned as copies. They run after the
  // group instead, on the group's output, so aliasing and strides are those of eager PyTorch. The
  // walk is in reverse, so that a view of a view sinks too.
  void sink_views(Group& group) const {
    NodeSet inside(group.begin(), group.end());
    for (auto it = group.rbegin(); it != group.rend(); ++it)
      if (kinds_.at(*it) == OpKind::view && is_used_outside(*it, inside)) inside.erase(*it);
    std::erase_if(group, [&](const Node* node) { return !inside.count(node); });
  }

  bool is_used_outside(const Node* node, const NodeSet& inside) const {
    return std::any_of(node->outputs().begin(), node->outputs().end(),
                       [&](const Value* value) { return is_used_outside(value, inside); });
  }

  // Return whether a node outside of `inside` uses `value`, directly or through a list.
  bool is_used_outside(const Value* value, const NodeSet& inside) const {
    return std::any_of(value->uses().begin(), value->uses().end(), [&](const auto& use) {
      const auto* user = node_in_block(use.user, block_);
      if (user && user != block_->return_node() && is_copied(user))
        return is_used_outside(user, inside);
      return !inside.count(user);
    });
  }

  // Return whether a group saves more than it costs. Entering a group costs about a microsecond,
  // and PyTorch does not see its nodes. One anchor (matmul, convolution, reduction, …) is worth
  // that. Two elementwise ops are too, because fusing them saves a pass over memory. Views and
  // shape arithmetic alone compute nothing.
  bool is_profitable(const Group& group) const {
    const size_t least_cheap = fusion_.joins_lone ? 1 : 2;
    size_t compute = 0, cheap = 0;
    for (const auto* node : group) {
      compute += kinds_.at(node) == OpKind::compute;
      cheap += kinds_.at(node) == OpKind::cheap;
    }
    return (compute >= 1 || cheap >= least_cheap) && has_outputs(group);
  }

  // Return whether the group has outputs. A group without outputs would be removed as dead code,
  // even if its branches write to memory.
  bool has_outputs(const Group& group) const {
    const NodeSet inside(group.begin(), group.end());
    return std::any_of(group.begin(), group.end(),
                       [&](const Node* node) { return is_used_outside(node, inside); });
  }

  // --- order -----------------------------------------------------------------------------------

  // Return the nodes of the block in an order that keeps the nodes of each group together. One
  // node, the leader, represents its group. All other nodes keep their order where they can.
  std::vector<Node*> order() const {
    std::unordered_map<Node*, std::unordered_set<Node*>> successors;
    std::unordered_map<Node*, size_t> num_predecessors;
    std::unordered_map<Node*, NodeSet> expanded;
    for (auto* node : block_->nodes()) {
      auto* dependent = leader(node);
      num_predecessors[dependent];
      const auto copied = [&](const Node* producer) {
        return is_grouped(node) && is_copied_into_groups(producer);
      };
      for_each_provider(node, copied, expanded[dependent], [&](Node* before) {
        if (leader(before) == dependent) return;
        if (successors[leader(before)].insert(dependent).second) ++num_predecessors[dependent];
      });
    }
    const auto later = [&](Node* a, Node* b) { return position_.at(a) > position_.at(b); };
    std::priority_queue<Node*, std::vector<Node*>, decltype(later)> ready(later);
    for (const auto& [node, count] : num_predecessors)
      if (count == 0) ready.push(node);
    std::vector<Node*> result;
    while (!ready.empty()) {
      auto* node = ready.top();
      ready.pop();
      result.push_back(node);
      for (auto* next : successors[node])
        if (--num_predecessors[next] == 0) ready.push(next);
    }
    TORCH_INTERNAL_ASSERT(result.size() == num_predecessors.size(),
                          "a compilation group depends on itself");
    return result;
  }

  const Group* group_of(const Node* node) const {
    const auto entry = group_of_.find(node);
    return entry == group_of_.end() ? nullptr : &groups_[entry->second];
  }

  // Return the node that represents `node` in the order: the first node of its group, or itself.
  Node* leader(Node* node) const {
    const auto* group = group_of(node);
    return group ? group->front() : node;
  }

  // Return whether each group that uses `node` gets a copy of it. Groups must be final.
  bool is_copied_into_groups(const Node* node) const {
    return is_copied(node) || (is_view(node) && !is_grouped(node));
  }

  void move_to_end(Node* node) const {
    const auto* group = group_of(node);
    if (!group) return node->moveBefore(block_->return_node());
    for (auto* member : *group)
      member->moveBefore(block_->return_node());
  }

  // --- extraction ------------------------------------------------------------------------------

  void extract(const Group& group, bool written) const {
    auto* node = block_->owningGraph()->create(fusion_.group_kind, /*num_outputs=*/0);
    node->insertBefore(group.front());
    node->s_(device_attribute(), table_.device);
    if (written) node->i_(written_attribute(), 1);
    auto subgraph = std::make_shared<Graph>();
    std::unordered_map<const Value*, Value*> inner;
    for (auto* member : group)
      copy_into(*subgraph, node, member, inner);
    const NodeSet inside(group.begin(), group.end());
    for (auto* member : group)
      for (auto* value : member->outputs())
        if (is_used_outside(value, inside)) {
          subgraph->registerOutput(inner.at(value));
          auto* output = node->addOutput();
          output->copyMetadata(value);
          value->replaceAllUsesWith(output);
        }
    node->g_(attr::Subgraph, std::move(subgraph));
    mark_parameters(node);
    mark_flags(node, group);
    for (auto it = group.rbegin(); it != group.rend(); ++it)
      destroy(*it);
  }

  // Return whether something outside writes to a tensor that the group reads or returns. Attributes
  // and the graph's inputs do not count, although they may be the same memory: batch norms write to
  // attributes without gradients.
  bool has_external_writes(const Group& group) const {
    if (fusion_.has_external_writes) return true;
    const NodeSet inside(group.begin(), group.end());
    const auto is_written = [&](const Value* value) {
      const auto kind = value->node()->kind();
      return is_tensor(value) && kind != prim::GetAttr && kind != prim::Param &&
             aliases_.has_writers(value);
    };
    return std::any_of(group.begin(), group.end(), [&](const Node* member) {
      const auto inputs = member->inputs(), outputs = member->outputs();
      return std::any_of(inputs.begin(), inputs.end(),
                         [&](const Value* value) {
                           return inside.count(value->node()) == 0 && is_written(value);
                         }) ||
             std::any_of(outputs.begin(), outputs.end(), [&](const Value* value) {
               return is_written(value) && is_used_outside(value, inside);
             });
    });
  }

  void copy_into(Graph& subgraph, Node* group_node, Node* node,
                 std::unordered_map<const Value*, Value*>& inner) const {
    const auto lookup = [&](Value* value) {
      if (!inner.count(value)) {
        if (is_copied_into_groups(value->node())) {
          copy_into(subgraph, group_node, value->node(), inner);
        } else {
          inner[value] = subgraph.addInput()->copyMetadata(value);
          group_node->addInput(value);
        }
      }
      return inner.at(value);
    };
    auto* copy = subgraph.appendNode(subgraph.createClone(node, lookup));
    for (size_t i = 0; i < copy->outputs().size(); ++i)
      inner[node->output(i)] = copy->output(i);
  }

  void mark_parameters(Node* node) const {
    const auto inner = node->g(attr::Subgraph)->inputs();
    std::vector<int64_t> parameters;
    for (size_t i = 0; i < node->inputs().size(); ++i)
      if (is_parameter(node->input(i), inner[i])) parameters.push_back(static_cast<int64_t>(i));
    node->is_(parameters_attribute(), std::move(parameters));
  }

  // Return whether `value` is a parameter. `inner` is the same value inside of the group. An
  // attribute that may be None (the bias of a scripted convolution) is also a parameter: its
  // presence is part of the specialisation.
  bool is_parameter(const Value* value, const Value* inner) const {
    const auto* node = value->node();
    if (!value->type()->isSubtypeOf(*c10::OptionalType::ofTensor())) return false;
    if (node->kind() != prim::GetAttr) return fusion_.parameters.count(value) != 0;
    if (fusion_.states.count(node->s(attr::name))) return false;
    return !fusion_.statistics.count(node->s(attr::name)) || is_only_a_running_statistic(inner);
  }

  // Return whether `node` runs, or can be compiled, under conditions that only a call determines.
  bool is_conditional(const Node* node) const {
    return node->kind() == prim::If || is_open(node) || is_in_place(node);
  }

  bool is_open(const Node* node) const {
    const auto* rule = table_.rule(node);
    return trains(node) || (rule && table_.conditions(node, *rule) == Conditions::open);
  }

  // Return whether only a program of training steps contains `node`.
  bool trains(const Node* node) const {
    const auto* rule = fusion_.joins_training ? table_.rule(node) : nullptr;
    return rule && table_.conditions(node, *rule) == Conditions::training;
  }

  // Return whether `node` changes an attribute in place in a program that trains, such as the
  // number of batches that a norm has seen.
  bool updates_attribute(const Node* node) const {
    return trains_ && !node->output()->hasUses() && node->input(0)->node()->kind() == prim::GetAttr;
  }

  bool depends_on_attributes(const Node* node) const {
    return node->kind() == prim::If ? fusion_.from_attributes.count(node->input()) != 0
                                    : is_open(node);
  }

  void mark_flags(Node* node, const Group& group) const {
    if (std::none_of(group.begin(), group.end(),
                     [&](const Node* member) { return is_conditional(member); }))
      return;
    std::vector<int64_t> flags;
    for (size_t i = 0; i < node->inputs().size(); ++i)
      if (node->input(i)->type()->kind() == c10::TypeKind::BoolType)
        flags.push_back(static_cast<int64_t>(i));
    node->is_(flags_attribute(), std::move(flags));
  }

  // Destroy `node` and its remaining users, which are lists without users.
  void destroy(Node* node) const {
    for (auto* output : node->outputs())
      while (output->hasUses())
        destroy(output->uses().back().user);
    node->destroy();
  }

  Block* block_;
  const Fusion& fusion_;
  const DeviceTable& table_;
  const Aliases& aliases_;
  const MemoryOrder memory_order_;
  std::unordered_map<const Node*, size_t> position_;
  std::unordered_map<const Node*, OpKind> kinds_;     // only supported nodes
  std::unordered_map<const Node*, Refusal> refusals_; // all other nodes
  std::unordered_map<const Node*, size_t> level_;
  std::unordered_map<const Node*, size_t> group_of_; // only nodes that are in a group
  std::map<size_t, Group> candidates_;               // by level
  std::vector<Group> groups_;
  ValueSet shape_tensors_;
  NodeSet condition_producers_; // compute conditions of grouped branches; stay outside
  bool is_regrouped_ = false;   // groups of this block are formed again at run time
  bool trains_ = false;         // nodes of this block train in every call
};

// Stages of the pass, in the order of `pass_stages()`.
enum class Stage {
  write_out_appends,
  remove_list_mutation,
  make_functional,
  hoist_attributes,
  analyse_aliases,
  find_groups,
  form_groups,
  read_attributes,
  eliminate_dead_code,
  restore_in_place,
  count
};

std::atomic<Stage> failing_stage{Stage::count};

void enter(Stage stage) {
  TORCH_CHECK(failing_stage.load(std::memory_order_relaxed) != stage, "a test lets the stage ",
              pass_stages()[static_cast<size_t>(stage)], " fail");
}

// Form the groups of a block and of its inner blocks. Return their number. The groups of an outer
// block are found before inner ones, because they include whole branches. They are formed after
// inner ones: inner groups do not change which values the outer block's nodes read and write. The
// alias analysis, however, does not know values that groups add to an outer block.
size_t fuse_block(Block* block, const Fusion& fusion) {
  enter(Stage::find_groups);
  BlockFuser fuser(block, fusion);
  fuser.find_groups();
  if (fusion.ungrouped) fuser.report_ungrouped();
  size_t groups = 0;
  for (auto* node : block->nodes())
    if (!fuser.is_grouped(node))
      for (auto* inner : node->blocks())
        groups += fuse_block(inner, fusion);
  enter(Stage::form_groups);
  return groups + fuser.form_groups();
}

NodeSet nodes_at(Graph& graph, const std::vector<size_t>& numbers) {
  const std::unordered_set<size_t> wanted(numbers.begin(), numbers.end());
  NodeSet nodes;
  size_t number = 0;
  for (const auto* node : graph.nodes())
    if (wanted.count(number++)) nodes.insert(node);
  return nodes;
}

void remove_uses(Block* block) {
  for (auto* node : block->nodes()) {
    node->removeAllInputs();
    for (auto* inner : node->blocks())
      remove_uses(inner);
  }
  block->removeAllOutputs();
}

void mark_varying_inputs(Block* block, c10::Symbol group_kind, const ValueSet& known) {
  for (auto* node : block->nodes()) {
    for (auto* inner : node->blocks())
      mark_varying_inputs(inner, group_kind, known);
    if (node->kind() != group_kind) continue;
    std::vector<int64_t> varying;
    for (size_t i = 0; i < node->inputs().size(); ++i)
      if (has_data_dependent_length(node->input(i), known))
        varying.push_back(static_cast<int64_t>(i));
    if (!varying.empty()) node->is_(varying_attribute(), std::move(varying));
  }
}

// Replace the content of `graph`, in whichever state a stage left it, by a copy of `original`.
void restore(Graph& graph, Graph& original) {
  remove_uses(graph.block());
  graph.block()->clear();
  graph.block()->cloneFrom(original.block(), nullptr);
}

void report_failure(Graph& graph, const std::string& error, const FusionOptions& options) {
  if (options.failed) options.failed(error.substr(0, error.find('\n')));
  if (!options.ungrouped) return;
  const std::function<void(Block*)> visit = [&](Block* block) {
    for (auto* node : block->nodes()) {
      if (computes_with_tensors(node)) options.ungrouped({node, Refusal::failed_pass});
      for (auto* inner : node->blocks())
        visit(inner);
    }
  };
  visit(graph.block());
}

size_t form_all_groups(const std::shared_ptr<Graph>& graph, const DeviceTable& table,
                       const FusionOptions& options) {
  auto nodes_left_out = nodes_at(*graph, options.left_out);
  enter(Stage::write_out_appends);
  write_out_appends(graph);
  enter(Stage::remove_list_mutation);
  torch::jit::RemoveListMutation(graph);
  enter(Stage::make_functional);
  make_functional(graph, table, nodes_left_out);
  enter(Stage::hoist_attributes);
  const auto mutated = mutated_attributes(*graph);
  hoist_attributes(graph, mutated);
  ValueSet attributes;
  for (const auto index : options.parameters)
    attributes.insert(graph->inputs().at(index));
  ValueSet varying;
  for (const auto index : options.varying)
    varying.insert(graph->inputs().at(index));
  enter(Stage::analyse_aliases);
  const Aliases aliases(graph);
  const Fusion fusion{.table = table,
                      .open_conditions = options.open_conditions,
                      .joins_training = options.joins_training,
                      .joins_lone = options.joins_lone,
                      .group_kind = options.group_kind,
                      .aliases = aliases,
                      .parameters = std::move(attributes),
                      .has_external_writes = options.has_external_writes,
                      .uninitialised = uninitialised_values(graph->block()),
                      .from_attributes = values_from_attributes(graph->block()),
                      .changing = changing_values(graph->block()),
                      .statistics = running_statistics(graph->block()),
                      .states = mutated.names,
                      .left_out = std::move(nodes_left_out),
                      .ungrouped = options.ungrouped};
  const size_t groups = fuse_block(graph->block(), fusion);
  if (groups != 0) {
    mark_varying_inputs(graph->block(), options.group_kind, varying);
    enter(Stage::read_attributes);
    read_attributes_in_groups(graph, options.group_kind, mutated);
    enter(Stage::eliminate_dead_code);
    torch::jit::EliminateDeadCode(graph);
  }
  enter(Stage::restore_in_place);
  restore_in_place(graph->block());
  if (groups != 0 && table.is_asynchronous)
    insert_waits(graph->block(), options.group_kind, table.device);
  return groups;
}

} // namespace

size_t fuse_groups(const std::shared_ptr<Graph>& graph, const DeviceTable& table,
                   const FusionOptions& options) {
  const auto original = graph->copy();
  try {
    return form_all_groups(graph, table, options);
  } catch (const std::exception& error) {
    restore(*graph, *original);
    report_failure(*graph, error.what(), options);
    return 0;
  }
}

const std::vector<std::string>& pass_stages() {
  static const std::vector<std::string> names{
      "write-out-appends",   "remove-list-mutation", "make-functional", "hoist-attributes",
      "analyse-aliases",     "find-groups",          "form-groups",     "read-attributes",
      "eliminate-dead-code", "restore-in-place"};
  return names;
}

void fail_pass_stage(const std::string& stage) {
  const auto& names = pass_stages();
  const auto place = std::find(names.begin(), names.end(), stage);
  TORCH_CHECK_VALUE(stage.empty() || place != names.end(), "the pass has no stage '", stage, "'");
  failing_stage = static_cast<Stage>(place - names.begin());
}

} // namespace torchmdla
