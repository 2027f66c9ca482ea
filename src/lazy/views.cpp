#include "views.h"

#include "aten_operators.h"

#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/lazy/core/tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

namespace torchmdla::lazy {

using at::functionalization::ViewMeta;
using c10::DispatchKey;
using torch::jit::Stack;

namespace {

// Where a view lies in the memory that it shares.
struct Place {
  std::vector<int64_t> sizes, strides;
  int64_t offset;
};

void set_place(const at::Tensor& value, const Place& place) {
  auto* impl = value.unsafeGetTensorImpl();
  impl->set_custom_sizes_strides(c10::TensorImpl::SizesStridesPolicy::Default);
  impl->set_sizes_and_strides(place.sizes, place.strides, place.offset);
}

// A step of a view from its base. Functionalisation takes these again after writes, and the tensors
// that they make are new ones.
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

// PyTorch gives no way to change the steps.
std::vector<std::shared_ptr<ViewMeta>>& steps_of(const at::Tensor& tensor) {
  return const_cast<std::vector<std::shared_ptr<ViewMeta>>&>(wrapper_of(tensor).view_metas());
}

// `offset`: of what the view was made from. PyTorch has worked out the strides, and an offset from
// there, and written them where nobody reads them.
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

// Makes a view the whole of the memory that it lies in.
void become_base(const at::Tensor& view) {
  steps_of(view).clear();
  wrapper_of(view).regenerate_from_base();
}

// The whole of the memory that a view lies in, as another tensor.
at::Tensor base_of(const at::Tensor& view) {
  auto base = shallow_copy(view);
  become_base(base);
  return base;
}

// The strides that these are given are those of the whole memory that a tensor lies in.
constexpr std::array<std::string_view, 4> take_memory{
    "aten::as_strided", "aten::as_strided_", "aten::as_strided_copy", "aten::as_strided_scatter"};

// A tensor that shares the memory of `view`, but says that it is contiguous.
at::Tensor without_place(const at::Tensor& view) {
  auto tensor = shallow_copy(view);
  wrapper_of(tensor).replace_(
      torch::lazy::CreateAtenFromLtcTensor(torch::lazy::TryGetLtcTensor(wrapper_of(view).value())),
      /*from_lazy_regenerate=*/true);
  return tensor;
}

// The CPU may have kept the order of dimensions where this device did not, so what has no view here
// may have one there.
bool has_no_view(const at::Tensor& self, at::IntArrayRef sizes) {
  return self.numel() != 0 && !at::detail::computeStride(self.sizes(), self.strides(),
                                                         at::infer_size_dv(sizes, self.numel()));
}

// Kernels of views, between autograd and functionalisation, around PyTorch's.
class PlacedKernel : public c10::OperatorKernel {
public:
  explicit PlacedKernel(const c10::OperatorHandle& op)
      : original_(op.getComputedKernelForDispatchKey(DispatchKey::Functionalize)),
        num_arguments_(op.schema().arguments().size()), takes_memory_(is_in(take_memory, op)),
        is_in_place_(op.operator_name().name == "aten::as_strided_"),
        is_scatter_(op.operator_name().name == "aten::as_strided_scatter"),
        is_view_(c10::toString(op.operator_name()) == "aten::view") {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    auto& first = argument(*stack, 0);
    const auto self = first.toTensor();
    if (!is_lazy(self)) return original_.callBoxed(op, keys, stack);
    if (takes_memory_ && !steps_of(self).empty()) return call_with_memory(op, keys, stack, self);
    if (is_view_ && has_no_view(self, argument(*stack, 1).toIntVector()))
      first = without_place(self);
    call(op, keys, stack, first.toTensor());
  }

private:
  c10::IValue& argument(Stack& stack, size_t index) const {
    return torch::jit::peek(stack, index, num_arguments_);
  }

  // `self`: the first argument.
  void call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack,
            const at::Tensor& self) const {
    const auto offset = self.sym_storage_offset().expect_int();
    const auto steps = steps_of(self).size();
    original_.callBoxed(op, keys, stack);
    const auto place_new = [&](const at::Tensor& view) {
      if (is_lazy(view) && steps_of(view).size() > steps) place(view, offset);
    };
    const auto& results = stack->back();
    if (results.isTensor()) return place_new(results.toTensor());
    for (const at::Tensor& view : results.toTensorVector())
      place_new(view);
  }

  void call_with_memory(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack,
                        const at::Tensor& self) const {
    const Place place{self.sizes().vec(), self.strides().vec(),
                      self.sym_storage_offset().expect_int()};
    auto& offset = argument(*stack, num_arguments_ - 1);
    if (offset.isNone()) offset = place.offset;
    if (is_in_place_)
      become_base(self);
    else
      argument(*stack, 0) = base_of(self);
    call(op, keys, stack, argument(*stack, 0).toTensor());
    if (!is_scatter_) return;
    auto& result = stack->back();
    result = result.toTensor().as_strided(place.sizes, place.strides, place.offset);
  }

  const c10::SafeKernelFunction original_;
  const size_t num_arguments_;
  const bool takes_memory_, is_in_place_, is_scatter_, is_view_;
};

// These make a tensor share other memory; what they do is no step of a view.
constexpr std::array<std::string_view, 4> other_memory{"aten::set_", "aten::resize_",
                                                       "aten::resize_as_", "aten::rename_"};

bool is_view(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  const auto& returns = op.schema().returns();
  if (is_in(take_memory, op) && op.operator_name().overload_name.empty()) return true;
  if (!op.hasKernelForDispatchKey(DispatchKey::Functionalize) || arguments.empty() ||
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

void register_views() {
  static torch::Library views(torch::Library::IMPL, "aten", DispatchKey::Functionalize, __FILE__,
                              __LINE__);
  for_each_aten_operator([](const c10::OperatorHandle& op) {
    if (is_view(op))
      views.impl(c10::toString(op.operator_name()).c_str(),
                 torch::CppFunction::makeFromBoxedFunctor(std::make_unique<PlacedKernel>(op)));
  });
}

} // namespace torchmdla::lazy
