#include "list_appends.h"

#include "graph_values.h"

#include <torch/csrc/jit/passes/constant_propagation.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>
#include <torch/csrc/jit/passes/peephole_list_idioms.h>

#include <algorithm>
#include <vector>

namespace torchmdla {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Use;
using torch::jit::Value;
namespace aten = c10::aten;
namespace prim = c10::prim;

namespace {

bool is_append(const Use& use) {
  return use.user->kind() == aten::append && use.offset == 0 && !use.user->output()->hasUses();
}

bool reads_elements(const Use& use) {
  static const std::unordered_set<c10::Symbol> readers{aten::__getitem__, aten::cat, aten::len,
                                                       aten::stack, prim::ListUnpack};
  return readers.count(use.user->kind()) != 0;
}

// Return whether the appends to `list` can be replaced. All uses must be in its block: a read in an
// inner block, if that is a loop's, would see appends of a later iteration.
bool can_write_out(const Node* list) {
  if (list->kind() != prim::ListConstruct || !is_tensor_list(list->output())) return false;
  const auto& uses = list->output()->uses();
  return std::any_of(uses.begin(), uses.end(), is_append) &&
         std::all_of(uses.begin(), uses.end(), [&](const Use& use) {
           return use.user->owningBlock() == list->owningBlock() &&
                  (is_append(use) || reads_elements(use));
         });
}

void write_out(Node* list) {
  auto uses = list->output()->uses();
  std::sort(uses.begin(), uses.end(),
            [](const Use& a, const Use& b) { return a.user->isBefore(b.user); });
  auto* current = list;
  std::vector<Value*> elements(list->inputs().begin(), list->inputs().end());
  for (const auto& use : uses) {
    if (!reads_elements(use)) {
      elements.push_back(use.user->input(1));
      use.user->destroy();
      continue;
    }
    if (current->inputs().size() != elements.size()) {
      current = list->owningGraph()->create(prim::ListConstruct, elements);
      current->output()->setType(list->output()->type());
      current->insertBefore(use.user);
    }
    use.user->replaceInput(use.offset, current->output());
  }
  if (!list->hasUses()) list->destroy();
}

bool write_out_appends(Block* block) {
  std::vector<Node*> lists;
  bool any = false;
  for (auto* node : block->nodes()) {
    for (auto* inner : node->blocks())
      any |= write_out_appends(inner);
    if (can_write_out(node)) lists.push_back(node);
  }
  for (auto* list : lists)
    write_out(list);
  return any || !lists.empty();
}

} // namespace

void write_out_appends(const std::shared_ptr<Graph>& graph) {
  if (!write_out_appends(graph->block())) return;
  // Lengths are folded first, then indices that are computed from them, then the elements at these
  // indices.
  auto same = graph;
  torch::jit::PeepholeOptimizeListIdioms(graph);
  torch::jit::ConstantPropagationImmutableTypes(same);
  torch::jit::PeepholeOptimizeListIdioms(graph);
  // The alias analysis would assume that a list without readers still holds its elements.
  torch::jit::EliminateDeadCode(graph);
}

} // namespace torchmdla
