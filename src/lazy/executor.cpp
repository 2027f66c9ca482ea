#include "executor.h"

#include "custom_ops.h"
#include "failures.h"
#include "pending.h"

#include <c10/util/ScopeExit.h>

#include <torch/csrc/lazy/core/hash.h>
#include <torch/csrc/lazy/core/internal_ops/ltc_ops.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace torchmdla::lazy {

using torch::lazy::LazyTensor;

namespace {

// Ids of the tensors that PyTorch asked about since the last graph began. An abandoned collection
// leaves some.
thread_local std::vector<int64_t> collected;
thread_local std::vector<int64_t> synced;
thread_local bool marks_step = false;

// Return a hash of the sharing of nodes in a graph. PyTorch identifies a graph by its operators and
// input shapes, as a tree: `(a - b) + a` and `(a - b) + b` would be equal.
torch::lazy::hash_t hash_of_sharing(const std::vector<const torch::lazy::Node*>& post_order,
                                    const std::vector<torch::lazy::Value>& results) {
  std::unordered_map<const torch::lazy::Node*, size_t> positions;
  std::vector<size_t> used;
  for (const auto* node : post_order) {
    for (const auto& operand : node->operands())
      used.push_back(positions.at(operand.node));
    positions.emplace(node, positions.size());
  }
  for (const auto& result : results)
    used.push_back(positions.at(result.node.get()));
  return torch::lazy::Hash(used);
}

} // namespace

const std::vector<int64_t>& synced_tensors() {
  return synced;
}

void set_synced_tensors(std::vector<int64_t> ids) {
  synced = std::move(ids);
}

bool in_mark_step() {
  return marks_step;
}

void Executor::SyncLiveTensorsGraph(const torch::lazy::BackendDevice* device,
                                    c10::ArrayRef<std::string> devices, bool wait) {
  marks_step = true;
  const auto leave = c10::make_scope_exit([] { marks_step = false; });
  LazyGraphExecutor::SyncLiveTensorsGraph(device, devices, wait);
  rethrow_recorded_error();
}

void Executor::RegisterTensor(std::shared_ptr<LazyTensor::Data> data) {
  notice_new_operators();
  register_tensor(data);
  LazyGraphExecutor::RegisterTensor(std::move(data));
}

void Executor::UnregisterTensor(LazyTensor::Data* data) {
  unregister_tensor(*data);
  LazyGraphExecutor::UnregisterTensor(data);
}

bool Executor::ShouldSyncTensor(const torch::lazy::LazyTensorPtr& tensor) const {
  const bool should = tensor->GetIrValue()->op() != torch::lazy::ltc_not_supported;
  if (should) collected.push_back(tensor->GetUniqueId());
  return should;
}

Executor::PostOrderData Executor::RunPostOrder(const std::vector<torch::lazy::Value>& ir_values,
                                               SyncTensorCollection* collection) {
  const auto count = static_cast<int64_t>(std::min(ir_values.size(), collected.size()));
  synced.assign(collected.end() - count, collected.end());
  collected.clear();
  auto data = LazyGraphExecutor::RunPostOrder(ir_values, collection);
  collection->hash =
      torch::lazy::HashCombine(collection->hash, hash_of_sharing(data.post_order, ir_values));
  return data;
}

} // namespace torchmdla::lazy
