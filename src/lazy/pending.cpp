#include "pending.h"

#include "base/forks.h"
#include "base/never_destroyed.h"

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
  const ForkSafeLock guard(recent().mutex);
  auto& by_thread = recent().by_thread;
  const auto entry = by_thread.find(std::this_thread::get_id());
  if (entry == by_thread.end()) return;
  for (const auto id : ids)
    entry->second.erase(id);
  if (entry->second.empty()) by_thread.erase(entry);
}

// Return the recent tensors of this thread. No tensor may be destroyed under the lock, because its
// destruction acquires the lock.
HeldTensors recent_tensors() {
  HeldTensors result;
  const ForkSafeLock guard(recent().mutex);
  const auto entry = recent().by_thread.find(std::this_thread::get_id());
  if (entry == recent().by_thread.end()) return result;
  for (const auto& [id, tensor] : entry->second)
    if (auto held = tensor.lock()) result.emplace_hint(result.end(), id, std::move(held));
  return result;
}

HeldTensors recent_pending() {
  auto pending = recent_tensors();
  std::vector<int64_t> computed_ids;
  std::erase_if(pending, [&](const auto& entry) {
    if (is_pending(*entry.second)) return false;
    computed_ids.push_back(entry.first);
    return true;
  });
  forget_recent(computed_ids);
  return pending;
}

// --- families ------------------------------------------------------------------------------------

// Partition of pending tensors into families. Tensors that share computations, directly or through
// others, are in one family, so that a read walks only a few of many pending tensors. Nodes may
// have been destroyed and their addresses reused: a family only narrows the search.
class Families {
public:
  // Return the number of tensors when the families were formed.
  size_t size() const { return size_; }

  void add_members_to(HeldTensors& result) const {
    for (const auto& [family, members] : members_)
      add(members, result);
  }

  // Add the members of all families that one of the nodes belongs to.
  void add_relatives_to(HeldTensors& result, const std::vector<const Node*>& nodes) const {
    std::unordered_set<size_t> families;
    for (const auto* node : nodes)
      if (const auto family = family_of_.find(node); family != family_of_.end())
        if (families.insert(family->second).second) add(members_.at(family->second), result);
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
        if (const auto entry = family_of_.find(operand.node); entry != family_of_.end())
          parents[family(entry->second)] = family(i);
    }
    for (auto& [node, index] : family_of_)
      index = family(index);
    for (const auto& [id, tensor] : tensors)
      members_[family_of_.at(tensor->ir_value.node.get())].emplace(id, tensor);
  }

private:
  static void add(const Tensors& members, HeldTensors& result) {
    for (const auto& [id, tensor] : members)
      if (auto held = tensor.lock(); held && is_pending(*held)) result.emplace(id, std::move(held));
  }

  std::unordered_map<const Node*, size_t> family_of_;
  std::unordered_map<size_t, Tensors> members_;
  size_t size_ = 0;
};

// Return the families of this thread. Many recent tensors are merged into them once reads have
// walked as many tensors as the families contain. Forming the families costs about as much as these
// walks.
const Families& update_families(HeldTensors& recent) {
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

void register_tensor(const std::shared_ptr<LazyTensor::Data>& tensor) {
  const ForkSafeLock guard(recent().mutex);
  recent().by_thread[std::this_thread::get_id()].insert_or_assign(tensor->unique_id, tensor);
}

void unregister_tensor(const LazyTensor::Data& tensor) {
  const ForkSafeLock guard(recent().mutex);
  auto& by_thread = recent().by_thread;
  const auto maker = std::find_if(by_thread.begin(), by_thread.end(), [&](auto& entry) {
    return entry.second.erase(tensor.unique_id) != 0;
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
  update_families(candidates).add_relatives_to(candidates, nodes);

  std::unordered_set<const Node*> shared(nodes.begin(), nodes.end());
  for (const auto* node : Util::ComputePostOrder(roots_of(candidates), &walked))
    if (std::any_of(node->operands().begin(), node->operands().end(),
                    [&](const auto& operand) { return shared.count(operand.node) != 0; }))
      shared.insert(node);
  std::vector<torch::lazy::LazyTensorPtr> result;
  for (const auto& [id, candidate] : candidates)
    if (candidate->device == tensor.device && shared.count(candidate->ir_value.node.get()) != 0)
      result.push_back(LazyTensor::Create(candidate));
  return result;
}

} // namespace torchmdla::lazy
