// PyTorch's executor of lazy graphs, which also reports the tensors that it is computing.
#pragma once

#include <torch/csrc/lazy/core/lazy_graph_executor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace torchmdla::lazy {

// Return the ids of the tensors that this thread is computing, in the order of the graph's outputs.
const std::vector<int64_t>& synced_tensors();
void set_synced_tensors(std::vector<int64_t> ids);

// Return whether this thread is computing all pending tensors, at the end of a step.
bool in_mark_step();

class Executor : public torch::lazy::LazyGraphExecutor {
public:
  void SyncLiveTensorsGraph(const torch::lazy::BackendDevice* device,
                            c10::ArrayRef<std::string> devices, bool wait) override;
  void RegisterTensor(std::shared_ptr<torch::lazy::LazyTensor::Data> data) override;
  void UnregisterTensor(torch::lazy::LazyTensor::Data* data) override;

protected:
  PostOrderData RunPostOrder(const std::vector<torch::lazy::Value>& ir_values,
                             SyncTensorCollection* collection) override;

private:
  bool ShouldSyncTensor(const torch::lazy::LazyTensorPtr& tensor) const override;
};

} // namespace torchmdla::lazy
