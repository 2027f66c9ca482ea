#include "index_checks.h"

#include "deferred/result_types.h"
#include "tensor.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/count_nonzero.h>
#include <c10/util/accumulate.h>

#include <unordered_set>

namespace torchmdla::acap {

using c10::IValue;

namespace {

// Return the content of an index tensor, or an undefined tensor if it is pending.
at::Tensor computed(const at::Tensor& index) {
  if (!is_acap(index)) return index;
  {
    const ForkSafeLock guard(graph_mutex());
    const auto& value = Storage::of(index).value();
    if (!value || value->node) return {};
  }
  return cpu_alias(index);
}

bool is_mask(const at::Tensor& index) {
  return index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
}

// Return whether an index is outside of a dimension of `size` elements.
bool is_out_of_range(const at::Tensor& index, int64_t size) {
  if (index.numel() == 0) return false;
  const auto [least, most] = at::aminmax(index);
  return least.item<int64_t>() < -size || most.item<int64_t>() >= size;
}

// Return the result of `aten::index` as a meta tensor, or nullopt if the meta kernel fails.
std::optional<Results> infer_indexed(const at::Tensor& self, const c10::List<IValue>& indices) {
  static const auto index = c10::Dispatcher::singleton().findSchemaOrThrow("aten::index", "Tensor");
  c10::List<std::optional<at::Tensor>> tensors;
  for (const IValue& element : indices)
    tensors.push_back(element.toOptional<at::Tensor>());
  return infer_types(index, {self, tensors});
}

} // namespace

bool is_indexing(const c10::OperatorHandle& op) {
  static const std::unordered_set<std::string> names{
      "aten::index",           "aten::index_put",
      "aten::index_put_",      "aten::_index_put_impl_",
      "aten::_unsafe_index",   "aten::_unsafe_index_put",
      "aten::_index_put_impl", "aten::_unsafe_masked_index"};
  return names.count(op.operator_name().name) != 0;
}

namespace {

// Do the check for a list of indices, and for the values that are written to them.
bool has_faulty_list(const std::vector<IValue>& arguments) {
  if (arguments.size() < 2 || !arguments[1].isList()) return false;
  const auto& self = arguments[0].toTensor();
  // Indices of the same sizes as the given ones. A mask is replaced by the indices that it selects.
  c10::List<IValue> indices(c10::OptionalType::create(c10::TensorType::get()));
  int64_t dimension = 0;
  for (const IValue& element : arguments[1].toListRef()) {
    const auto index = element.isTensor() ? element.toTensor() : at::Tensor();
    const int64_t dimensions = index.defined() && is_mask(index) ? index.dim() : 1;
    if (dimension + dimensions > self.dim()) return true;
    if (!index.defined()) {
      indices.push_back(IValue());
    } else if (is_mask(index)) {
      const auto mask = computed(index);
      // PyTorch warns about masks of bytes.
      if (index.scalar_type() == at::kByte ||
          index.sizes() != self.sizes().slice(dimension, dimensions))
        return true;
      // Values that fit one element of a pending mask fit any number of elements.
      const auto count = mask.defined() ? mask.count_nonzero().item<int64_t>() : 1;
      const at::Tensor selected(at::detail::empty_meta({count}, at::kLong));
      for (int64_t i = 0; i < dimensions; ++i)
        indices.push_back(selected);
    } else {
      const auto values = computed(index);
      if (values.defined() && is_out_of_range(values, self.size(dimension))) return true;
      indices.push_back(meta_of(index));
    }
    dimension += dimensions;
  }
  if (arguments.size() < 3 || !arguments[2].isTensor()) return false;
  const auto& values = arguments[2].toTensor();
  const auto indexed = infer_indexed(self, indices);
  return !indexed || values.scalar_type() != self.scalar_type() ||
         !at::is_expandable_to(values.sizes(), indexed->front().sizes());
}

// Return whether a mask selects more elements of `arguments[0]` than there are values.
bool lacks_values(const std::vector<IValue>& arguments) {
  const auto &self = arguments[0].toTensor(), &values = arguments[2].toTensor();
  const auto mask = computed(arguments[1].toTensor());
  if (!mask.defined() || mask.numel() == 0 || !at::are_expandable(self.sizes(), mask.sizes()))
    return false;
  const auto elements = c10::multiply_integers(at::infer_size(self.sizes(), mask.sizes()));
  return mask.count_nonzero().item<int64_t>() * (elements / mask.numel()) > values.numel();
}

} // namespace

bool has_faulty_indices(const c10::OperatorHandle& op, const std::vector<IValue>& arguments) {
  if (is_indexing(op)) return has_faulty_list(arguments);
  const auto& name = op.operator_name().name;
  return (name == "aten::masked_scatter" || name == "aten::masked_scatter_") &&
         lacks_values(arguments);
}

} // namespace torchmdla::acap
