#include "executor.h"

#include "failures.h"

#include <c10/util/ScopeExit.h>

#include <algorithm>

#include <torch/csrc/lazy/core/internal_ops/ltc_ops.h>

namespace torchmdla::lazy {

namespace {

// Those that were asked about since a graph was last begun. An abandoned collection leaves some.
thread_local std::vector<int64_t> collected;
thread_local std::vector<int64_t> synced;
thread_local bool marks_step = false;

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
  raise_noted_error();
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
  return LazyGraphExecutor::RunPostOrder(ir_values, collection);
}

} // namespace torchmdla::lazy
