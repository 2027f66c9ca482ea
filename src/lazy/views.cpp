#include "views.h"

#include "deferred/aten_operators.h"

#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <torch/csrc/lazy/core/tensor.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace torchmdla::lazy {

using at::functionalization::ViewMeta;

namespace {

// Geometry of a view in the memory that it shares.
struct Place {
  std::vector<int64_t> sizes, strides;
  int64_t offset;
};

void set_place(const at::Tensor& value, const Place& place) {
  auto* impl = value.unsafeGetTensorImpl();
  impl->set_custom_sizes_strides(c10::TensorImpl::SizesStridesPolicy::Default);
  impl->set_sizes_and_strides(place.sizes, place.strides, place.offset);
}

// Step of a view from its base. Functionalisation repeats the steps after writes, which creates new
// tensors; these get the same place.
class PlacedView : public ViewMeta {
public:
  PlacedView(std::shared_ptr<ViewMeta> view, Place place)
      : ViewMeta(view->has_symbolic_inputs, view->is_multi_output, view->is_as_strided,
                 view->out_index),
        view_(std::move(view)), place_(std::move(place)) {}

  at::Tensor forward(const at::Tensor& base) override {
    auto value = view_->forward(base);
    set_place(value, place_);
    return value;
  }

  at::Tensor reverse(const at::Tensor& base, const at::Tensor& mutated_view) override {
    return view_->reverse(base, mutated_view);
  }

private:
  const std::shared_ptr<ViewMeta> view_;
  const Place place_;
};

at::FunctionalTensorWrapper& wrapper_of(const at::Tensor& tensor) {
  return *at::functionalization::impl::unsafeGetFunctionalWrapper(tensor);
}

// Return the steps of a view. PyTorch does not provide mutable access to them.
std::vector<std::shared_ptr<ViewMeta>>& steps_of(const at::Tensor& tensor) {
  return const_cast<std::vector<std::shared_ptr<ViewMeta>>&>(wrapper_of(tensor).view_metas());
}

// Set the place of a view. `offset` is that of the tensor from which it was taken. PyTorch computes
// the strides and the relative offset, but stores them in fields that lazy tensors do not read.
void place(const at::Tensor& view, int64_t offset) {
  const auto& noted = *view.unsafeGetTensorImpl();
  Place place{view.sizes().vec(), noted.strides_default().vec(),
              offset + noted.storage_offset_default()};
  auto& last = steps_of(view).back();
  last = std::make_shared<PlacedView>(std::move(last), place);
  set_place(wrapper_of(view).value(), place);
}

at::Tensor shallow_copy(const at::Tensor& tensor) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(),
                                                  /*allow_tensor_metadata_change=*/true));
}

// Turn a view into a tensor of the whole memory that it shares.
void convert_to_base(const at::Tensor& view) {
  steps_of(view).clear();
  wrapper_of(view).regenerate_from_base();
}

// Return a new tensor of the whole memory that a view shares.
at::Tensor base_of(const at::Tensor& view) {
  auto base = shallow_copy(view);
  convert_to_base(base);
  return base;
}

// Return a tensor that shares the memory of `view` but reports that it is contiguous.
at::Tensor remove_place(const at::Tensor& view) {
  auto tensor = shallow_copy(view);
  wrapper_of(tensor).replace_(
      torch::lazy::CreateAtenFromLtcTensor(torch::lazy::TryGetLtcTensor(wrapper_of(view).value())),
      /*from_lazy_regenerate=*/true);
  return tensor;
}

// Return whether `self` does not have a view of these sizes. It may have one on the CPU, which may
// have kept an order of dimensions that this device did not.
bool has_no_view(const at::Tensor& self, at::IntArrayRef sizes) {
  return self.numel() != 0 && !at::detail::computeStride(self.sizes(), self.strides(),
                                                         at::infer_size_dv(sizes, self.numel()));
}

// --- interceptors --------------------------------------------------------------------------------

bool is_lazy_view(const at::Tensor& tensor) {
  return is_lazy(tensor) && !steps_of(tensor).empty();
}

// Run PyTorch's kernel and set the places of the views that it makes.
void make_views(const InterceptedCall& call) {
  const auto& self = call.arguments()[0].toTensor();
  if (!is_lazy(self)) return call.run_original();
  const auto offset = self.sym_storage_offset().expect_int();
  const auto steps = steps_of(self).size();
  call.run_original();
  const auto place_new = [&](const at::Tensor& view) {
    if (is_lazy(view) && steps_of(view).size() > steps) place(view, offset);
  };
  const auto& results = call.stack->back();
  if (results.isTensor()) return place_new(results.toTensor());
  for (const at::Tensor& view : results.toTensorVector())
    place_new(view);
}

void view(const InterceptedCall& call) {
  auto& self = call.arguments()[0];
  if (is_lazy(self.toTensor()) && has_no_view(self.toTensor(), call.arguments()[1].toIntVector()))
    self = remove_place(self.toTensor());
  make_views(call);
}

// Set the offset, the last argument of the call, to that of `self` if it is None.
void set_default_offset(const InterceptedCall& call, const at::Tensor& self) {
  auto& offset = call.arguments().back();
  if (offset.isNone()) offset = self.sym_storage_offset().expect_int();
}

// Call the operator on the base of a view. Here and in the next two functions, the strides in the
// call refer to the whole memory.
void as_strided(const InterceptedCall& call) {
  const auto self = call.arguments()[0].toTensor();
  if (is_lazy_view(self)) {
    set_default_offset(call, self);
    call.arguments()[0] = base_of(self);
  }
  make_views(call);
}

void as_strided_in_place(const InterceptedCall& call) {
  const auto self = call.arguments()[0].toTensor();
  if (is_lazy_view(self)) {
    set_default_offset(call, self);
    convert_to_base(self);
  }
  make_views(call);
}

void as_strided_scatter(const InterceptedCall& call) {
  const auto self = call.arguments()[0].toTensor();
  as_strided(call);
  if (!is_lazy_view(self)) return;
  auto& memory = call.stack->back();
  memory = memory.toTensor().as_strided(self.sizes(), self.strides(),
                                        self.sym_storage_offset().expect_int());
}

const std::unordered_map<std::string, void (*)(const InterceptedCall&)> custom_rules{
    {"aten::as_strided", as_strided},
    {"aten::as_strided_", as_strided_in_place},
    {"aten::as_strided_copy", as_strided},
    {"aten::as_strided_scatter", as_strided_scatter},
    {"aten::view", view}};

// Operators that make a tensor share other memory. They do not add a step to a view.
constexpr std::array<std::string_view, 4> other_memory{"aten::set_", "aten::resize_",
                                                       "aten::resize_as_", "aten::rename_"};

bool is_view(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  const auto& returns = op.schema().returns();
  if (!op.hasKernelForDispatchKey(c10::DispatchKey::Functionalize) || arguments.empty() ||
      returns.size() != 1 || !arguments[0].alias_info() || !returns[0].alias_info() ||
      arguments[0].type()->kind() != c10::TypeKind::TensorType)
    return false;
  if (!arguments[0].alias_info()->isWrite()) return true;
  return op.hasTag(at::Tag::inplace_view) && !is_in(other_memory, op);
}

} // namespace

bool is_lazy(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().is_lazy() &&
         at::functionalization::impl::isFunctionalTensor(tensor);
}

Interceptor view_interceptor(const c10::OperatorHandle& op) {
  const auto entry = custom_rules.find(c10::toString(op.operator_name()));
  if (entry != custom_rules.end()) return entry->second;
  return is_view(op) ? make_views : Interceptor();
}

} // namespace torchmdla::lazy
