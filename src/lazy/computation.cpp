#include "computation.h"

#include "deferred/canonical.h"
#include "executor.h"

#include <torch/csrc/lazy/ts_backend/ts_backend_impl.h>
#include <torch/csrc/lazy/ts_backend/ts_node.h>

#include <unordered_map>

namespace torchmdla::lazy {

using torch::lazy::LazyGraphExecutor;

namespace {

c10::TypePtr type_of(const torch::lazy::Shape& shape) {
  if (shape.scalar_type() == at::ScalarType::Undefined) return c10::TensorType::get();
  const c10::SymbolicShape sizes(shape.sizes());
  return c10::TensorType::create(shape.scalar_type(), /*device=*/std::nullopt, sizes,
                                 c10::VaryingShape<c10::Stride>(shape.sizes().size()),
                                 /*requires_grad=*/std::nullopt);
}

bool is_scalar(const torch::lazy::BackendDataPtr& data) {
  return static_cast<torch::lazy::TSData&>(*data).scalar.has_value();
}

} // namespace

size_t LoweringContext::AddResult(const torch::lazy::Output& output) {
  results_.push_back(output);
  return results_.size() - 1;
}

torch::lazy::ComputationPtr LoweringContext::Build() {
  for (const auto& result : results_)
    graph()->registerOutput(GetOutputOp(result));
  write_types();
  make_canonical(graph());
  // Copying the graph numbers its values in order.
  return std::make_shared<Computation>(graph()->copy(), aliases());
}

void LoweringContext::write_types() {
  std::vector<const torch::lazy::Node*> roots;
  for (const auto& result : results_)
    roots.push_back(result.node);
  for (const auto* node : torch::lazy::Util::ComputePostOrder(roots)) {
    if (node->op() == torch::lazy::tensor_list_opkind) continue;
    for (size_t i = 0; i < node->num_outputs(); ++i) {
      auto* value = GetOutputOp(torch::lazy::Output(node, i));
      if (value->type()->kind() == c10::TypeKind::TensorType)
        value->setType(type_of(node->shape(i)));
    }
  }
  for (size_t i = 0; i < parameters_.size(); ++i)
    if (!is_scalar(parameters_[i])) graph()->inputs()[i]->setType(type_of(parameters_[i]->shape()));
}

// Return the pairs of an output and a parameter that belong to the same tensor; the output is its
// new value. PyTorch's lowering has an interface for this (`SetUpAlias`), but does not call it.
std::vector<Computation::Alias> LoweringContext::aliases() const {
  const auto& tensors = synced_tensors();
  if (tensors.size() != results_.size()) return {};
  std::unordered_map<int64_t, size_t> outputs;
  for (size_t i = 0; i < tensors.size(); ++i)
    outputs.emplace(tensors[i], i);
  std::vector<Computation::Alias> pairs;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto* info =
        dynamic_cast<const LazyGraphExecutor::DeviceDataInfo*>(parameters_[i]->info());
    if (!info || info->read_only) continue;
    const auto output = outputs.find(info->tensor_id);
    if (output == outputs.end()) continue;
    if (parameters_[i]->shape() == results_[output->second].shape())
      pairs.push_back({output->second, i});
  }
  return pairs;
}

} // namespace torchmdla::lazy
