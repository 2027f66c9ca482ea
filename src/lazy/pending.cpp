#include "pending.h"

#include "support/forks.h"
#include "support/never_destroyed.h"

#include <torch/csrc/lazy/core/ir_util.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace torchmdla::lazy {

using torch::lazy::LazyTensor;
using torch::lazy::Node;
using torch::lazy::Util;

namespace {

// Maps by id, which is the order of creation.
using Tensors = std::map<int64_t, std::weak_ptr<LazyTensor::Data>>;
using HeldTensors = std::map<int64_t, std::shared_ptr<LazyTensor::Data>>;

bool is_computation(const Node& node) {
  return !node.operands().empty();
}

std::vector<const Node*> roots_of(const HeldTensors& tensors) {
  std::vector<const Node*> roots;
  for (const auto& [id, tensor] : tensors)
    roots.push_back(tensor->ir_value.node.get());
  return roots;
}

// --- recent tensors ------------------------------------------------------------------------------

// Tensors made since their thread last read a value, and tensors that were pending then and are in
// no family yet. A tensor with a value is removed permanently, because a write creates another
// tensor.
struct Recent {
  std::mutex mutex;
  std::unordered_map<std::thread::id, Tensors> by_thread; // guarded by mutex
};

// Return the recent tensors. They are never destroyed, because tensors may live until the process
// ends.
Recent& recent() {
  static NeverDestroyed<Recent> instance;
  return *instance;
}

void forget_recent(const std::vector<int64_t>& ids) {
  const Guard guard(recent().mutex);
  auto& by_thread = recent().by_thread;
  const auto made = by_thread.find(std::this_thread::get_id());
  if (made == by_thread.end()) return;
  for (const auto id : ids)
    made->second.erase(id);
  if (made->second.empty()) by_thread.erase(made);
}

// Return the recent tensors of this thread. No tensor may be destroyed under the lock, because its
// destruction acquires the lock.
HeldTensors recent_tensors() {
  HeldTensors found;
  const Guard guard(recent().mutex);
  const auto made = recent().by_thread.find(std::this_thread::get_id());
  if (made == recent().by_thread.end()) return found;
  for (const auto& [id, tensor] : made->second)
    if (auto held = tensor.lock()) found.emplace_hint(found.end(), id, std::move(held));
  return found;
}

HeldTensors recent_pending() {
  auto found = recent_tensors();
  std::vector<int64_t> settled;
  std::erase_if(found, [&](const auto& one) {
    if (is_pending(*one.second)) return false;
    settled.push_back(one.first);
    return true;
  });
  forget_recent(settled);
  return found;
}

// --- families ------------------------------------------------------------------------------------

// Partition of pending tensors into families. Tensors that share computations, directly or through
// others, are in one family, so that a read walks only a few of many pending tensors. Nodes may
// have been destroyed and their addresses reused: a family only narrows the search.
class Families {
public:
  // Return the number of tensors when the families were formed.
  size_t size() const { return size_; }

  void add_members_to(HeldTensors& found) const {
    for (const auto& [family, members] : members_)
      add(members, found);
  }

  // Add the members of all families that one of the nodes belongs to.
  void add_relatives_to(HeldTensors& found, const std::vector<const Node*>& nodes) const {
    std::unordered_set<size_t> families;
    for (const auto* node : nodes)
      if (const auto family = family_of_.find(node); family != family_of_.end())
        if (families.insert(family->second).second) add(members_.at(family->second), found);
  }

  // Replace all families by those of `tensors`.
  void form(const HeldTensors& tensors) {
    family_of_.clear();
    members_.clear();
    size_ = tensors.size();
    const auto nodes = Util::ComputePostOrder(roots_of(tensors));
    std::vector<size_t> parents(nodes.size());
    std::iota(parents.begin(), parents.end(), 0);
    const auto family = [&](size_t index) {
      while (parents[index] != index)
        index = parents[index] = parents[parents[index]];
      return index;
    };
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (!is_computation(*nodes[i])) continue;
      family_of_.emplace(nodes[i], i);
      for (const auto& operand : nodes[i]->operands())
        if (const auto found = family_of_.find(operand.node); found != family_of_.end())
          parents[family(found->second)] = family(i);
    }
    for (auto& [node, index] : family_of_)
      index = family(index);
    for (const auto& [id, tensor] : tensors)
      members_[family_of_.at(tensor->ir_value.node.get())].emplace(id, tensor);
  }

private:
  static void add(const Tensors& members, HeldTensors& found) {
    for (const auto& [id, tensor] : members)
      if (auto held = tensor.lock(); held && is_pending(*held)) found.emplace(id, std::move(held));
  }

  std::unordered_map<const Node*, size_t> family_of_;
  std::unordered_map<size_t, Tensors> members_;
  size_t size_ = 0;
};

// Return the families of this thread. Many recent tensors are merged into them once reads have
// walked as many tensors as the families contain. Forming the families costs about as much as these
// walks.
const Families& families_beside(HeldTensors& recent) {
  constexpr size_t few = 64;
  thread_local Families families;
  thread_local size_t walked = 0;
  walked += recent.size();
  if (recent.size() <= few || walked <= families.size()) return families;
  walked = 0;
  std::vector<int64_t> ids;
  for (const auto& [id, tensor] : recent)
    ids.push_back(id);
  forget_recent(ids);
  families.add_members_to(recent);
  families.form(recent);
  recent.clear();
  return families;
}

} // namespace

void note_made(const std::shared_ptr<LazyTensor::Data>& tensor) {
  const Guard guard(recent().mutex);
  recent().by_thread[std::this_thread::get_id()].insert_or_assign(tensor->unique_id, tensor);
}

void note_gone(const LazyTensor::Data& tensor) {
  const Guard guard(recent().mutex);
  auto& by_thread = recent().by_thread;
  const auto maker = std::find_if(by_thread.begin(), by_thread.end(), [&](auto& made) {
    return made.second.erase(tensor.unique_id) != 0;
  });
  if (maker != by_thread.end() && maker->second.empty()) by_thread.erase(maker);
}

bool is_pending(const LazyTensor::Data& tensor) {
  return !tensor.handle && tensor.ir_value && is_computation(*tensor.ir_value.node);
}

std::vector<torch::lazy::LazyTensorPtr> pending_with(const LazyTensor::Data& tensor) {
  Util::EmissionMap walked;
  auto nodes = Util::ComputePostOrder(tensor.ir_value.node.get(), &walked);
  std::erase_if(nodes, [](const Node* node) { return !is_computation(*node); });
  auto candidates = recent_pending();
  families_beside(candidates).add_relatives_to(candidates, nodes);

  std::unordered_set<const Node*> shared(nodes.begin(), nodes.end());
  for (const auto* node : Util::ComputePostOrder(roots_of(candidates), &walked))
    if (std::any_of(node->operands().begin(), node->operands().end(),
                    [&](const auto& operand) { return shared.count(operand.node) != 0; }))
      shared.insert(node);
  std::vector<torch::lazy::LazyTensorPtr> found;
  for (const auto& [id, candidate] : candidates)
    if (candidate->device == tensor.device && shared.count(candidate->ir_value.node.get()) != 0)
      found.push_back(LazyTensor::Create(candidate));
  return found;
}

} // namespace torchmdla::lazy
