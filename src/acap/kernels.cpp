#include "kernels.h"

#include "cpu_call.h"
#include "deferred/aten_operators.h"
#include "operators.h"
#include "recording.h"
#include "recurrent.h"
#include "tensor.h"
#include "views.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/OpMathType.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <ATen/ops/_native_batch_norm_legit.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_native.h>
#include <ATen/ops/empty_strided_native.h>
#include <ATen/ops/ones_like.h>
#include <torch/library.h>

#include <unordered_set>

namespace torchmdla::acap {

using c10::IValue;
using c10::OperatorHandle;
using torch::jit::Stack;

namespace {

void boxed_record(const OperatorHandle& op, Stack* stack) {
  record(op, stack);
}

// Run `op` on the CPU without counting a fallback: a lazy device must compute values that are read.
void boxed_call_on_cpu(const OperatorHandle& op, Stack* stack) {
  call_on_cpu(op, stack);
}

// --- memory -------------------------------------------------------------------------------------

void check_options(std::optional<at::Layout> layout, std::optional<at::Device> device,
                   std::optional<bool> pin_memory) {
  if (device) check_index(*device);
  TORCH_CHECK_NOT_IMPLEMENTED(layout.value_or(at::kStrided) == at::kStrided,
                              "the acap device has dense tensors only, not ", *layout);
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                         std::optional<at::Device> device, std::optional<bool> pin_memory) {
  check_options(layout, device, pin_memory);
  const auto type = dtype.value_or(c10::get_default_dtype_as_scalartype());
  return wrap_cpu_tensor(at::native::empty_strided_cpu(sizes, strides, type));
}

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> layout, std::optional<at::Device> device,
                 std::optional<bool> pin_memory, std::optional<at::MemoryFormat> format) {
  check_options(layout, device, pin_memory);
  const auto type = dtype.value_or(c10::get_default_dtype_as_scalartype());
  return make_tensor(std::make_shared<Value>(at::native::empty_cpu(
      sizes, type, at::kStrided, c10::Device(c10::kCPU), /*pin_memory=*/false, format)));
}

// --- copies -------------------------------------------------------------------------------------

// Return strides of a tensor like `tensor` that has a storage of its own.
std::vector<int64_t> dense_strides(const at::Tensor& tensor) {
  auto geometry = Geometry::of(tensor);
  geometry.offset = 0;
  if (geometry.is_dense()) return tensor.strides().vec();
  return at::detail::empty_meta(tensor.sizes(), tensor.scalar_type()).strides().vec();
}

at::Tensor& copy_from_cpu(at::Tensor& self, const at::Tensor& source) {
  const auto expanded = source.expand_as(self);
  auto content = at::Tensor(
      at::detail::empty_strided_cpu(self.sizes(), dense_strides(self), self.scalar_type()));
  content.copy_(expanded);
  write_content(self, std::make_shared<Value>(std::move(content)));
  return self;
}

at::Tensor& copy_on_device(at::Tensor& self, const at::Tensor& source) {
  auto value = value_of(source);
  if (source.sizes() != self.sizes())
    value = append("aten::expand", "", {value, self.sizes().vec(), false},
                   at::Tensor(at::detail::empty_meta(self.sizes(), source.scalar_type())));
  write_content(self, value);
  return self;
}

// Copy `source` to `self`. Dtypes and sizes may differ; at least one of the tensors is on acap.
at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  if (self.is_same(source)) return self;
  at::assert_no_partial_overlap(self, source);
  const bool is_plain = !self.is_conj() && !self.is_neg() && !source.is_conj() && !source.is_neg();
  if (is_acap(self) && is_plain && at::is_expandable_to(source.sizes(), self.sizes())) {
    if (is_acap(source)) return copy_on_device(self, source);
    if (source.device().is_cpu() && source.layout() == at::kStrided)
      return copy_from_cpu(self, source);
  }
  const auto from = is_acap(source) ? cpu_alias(source) : source;
  if (!is_acap(self)) {
    self.copy_(from, non_blocking);
    return self;
  }
  write_on_cpu(self, [&](at::Tensor& alias) { alias.copy_(from, non_blocking); });
  return self;
}

// Copy a tensor to another dtype on the device, from the device, or to the device.
void to_copy(const OperatorHandle& op, Stack* stack) {
  auto* const arguments = stack->data() + (stack->size() - op.schema().arguments().size());
  auto& device = arguments[*op.schema().argumentIndexWithName("device")];
  const bool from_here = is_acap(arguments[0].toTensor());
  const bool to_here = device.isNone() || device.toDevice().type() == device_type;
  if (device.isDevice()) check_index(device.toDevice());
  if (from_here && to_here) return record(op, stack);
  if (from_here) arguments[0] = cpu_alias(arguments[0].toTensor());
  if (to_here) device = c10::Device(c10::kCPU);
  op.callBoxed(stack);
  if (to_here)
    stack->back() = make_tensor(std::make_shared<Value>(std::move(stack->back()).toTensor()));
}

// --- storages -----------------------------------------------------------------------------------

void set_storage(at::Tensor& self, const c10::Storage& storage, Geometry geometry) {
  TORCH_CHECK(storage.device().type() == device_type,
              "Attempted to set the storage of a tensor on device \"", self.device(),
              "\" to a storage on different device \"", storage.device(),
              "\".  This is no longer allowed; the devices must match.");
  geometry.check_fits(storage.nbytes());
  const auto place = Storage::find(storage.data());
  TORCH_CHECK(place && place->offset % self.itemsize() == 0, "torchmdla: a tensor of itemsize ",
              self.itemsize(), " cannot be in this slice of a storage of the acap device");
  geometry.offset += static_cast<int64_t>(place->offset / self.itemsize());
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(place->storage);
  place_in(self, geometry);
  rebase(self);
}

at::Tensor& set_to_part(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef sizes,
                        at::IntArrayRef strides) {
  const auto dense = at::detail::empty_meta(sizes, self.scalar_type());
  const auto view_strides = strides.empty() ? dense.strides() : strides;
  set_storage(self, source,
              {{sizes.begin(), sizes.end()},
               {view_strides.begin(), view_strides.end()},
               offset,
               self.scalar_type()});
  return self;
}

at::Tensor& set_to_storage(at::Tensor& self, at::Storage source) {
  const auto elements = static_cast<int64_t>(source.nbytes() / self.itemsize());
  set_storage(self, source, {{elements}, {1}, 0, self.scalar_type()});
  return self;
}

at::Tensor& set_to_tensor(at::Tensor& self, const at::Tensor& source) {
  set_storage(self, source.storage(), Geometry::of(source));
  return self;
}

// Change the view that a tensor is. The in-place views (`t_`, `squeeze_`, …) call this op.
const at::Tensor& as_strided_(const at::Tensor& self, at::IntArrayRef sizes,
                              at::IntArrayRef strides, std::optional<int64_t> offset) {
  TORCH_CHECK(sizes.size() == strides.size(), "mismatch in length of strides and shape");
  const Geometry geometry{{sizes.begin(), sizes.end()},
                          {strides.begin(), strides.end()},
                          offset.value_or(self.storage_offset()),
                          self.scalar_type()};
  geometry.check_fits(self.storage().nbytes());
  place_in(self, geometry);
  return self;
}

at::Tensor& set_to_nothing(at::Tensor& self) {
  const auto empty = at::empty({0}, self.options());
  return set_to_tensor(self, empty);
}

// --- values -------------------------------------------------------------------------------------

at::Tensor& fill_with(at::Tensor& self, const at::Scalar& number) {
  if (Geometry::of(self).may_overlap()) { // a graph cannot represent overlapping elements
    write_on_cpu(self, [&](at::Tensor& alias) { alias.fill_(number); });
    return self;
  }
  const auto dtype = self.scalar_type();
  write_content(self, append("aten::full", "",
                             {self.sizes().vec(), IValue(number), static_cast<int64_t>(dtype),
                              IValue(), c10::Device(c10::kCPU), IValue()},
                             at::Tensor(at::detail::empty_meta(self.sizes(), dtype))));
  return self;
}

at::Tensor& zero_(at::Tensor& self) {
  return fill_with(self, 0);
}

// Return ordinary zeros. Autograd represents zero derivatives by tensors without memory, which
// graphs do not support.
at::Tensor efficient_zeros(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                           std::optional<at::Layout> layout, std::optional<at::Device> device,
                           std::optional<bool> pin) {
  return at::zeros(sizes, dtype, layout, device, pin);
}

// The mask is drawn at once, in program order, and does not compute pending values.
std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& self, double p,
                                                  std::optional<bool> train) {
  if (!train.value_or(true)) return {self.clone(), at::ones_like(self, at::kBool)};
  const auto keep = 1 - p;
  auto mask = at::empty_like(self, self.options().dtype(at::kBool));
  mask.bernoulli_(keep);
  return {self.mul(mask).mul(keep == 0 ? 0. : 1. / keep), mask};
}

// Compute a batch norm. In training it writes to the running statistics, which this schema does not
// declare.
std::tuple<at::Tensor, at::Tensor, at::Tensor> native_batch_norm(
    const at::Tensor& self, const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& running_mean,
    const std::optional<at::Tensor>& running_var, bool training, double momentum, double eps) {
  const bool has_statistics = running_mean && running_mean->defined();
  if (training && has_statistics) {
    auto mean = *running_mean, variance = *running_var;
    return at::_native_batch_norm_legit(self, weight, bias, mean, variance, training, momentum,
                                        eps);
  }
  if (training) return at::_native_batch_norm_legit(self, weight, bias, training, momentum, eps);
  const auto operand = [](const std::optional<at::Tensor>& tensor) -> Operand {
    if (!tensor || !tensor->defined()) return IValue();
    return value_of(*tensor);
  };
  const auto result = append("aten::batch_norm", "",
                             {value_of(self), operand(weight), operand(bias), operand(running_mean),
                              operand(running_var), false, momentum, eps, false},
                             at::Tensor(at::detail::empty_meta(self.sizes(), self.scalar_type(),
                                                               self.suggest_memory_format())));
  const auto none = at::empty({0}, self.options().dtype(at::toOpMathType(self.scalar_type())));
  return {make_tensor(result), none, none};
}

// --- registration -------------------------------------------------------------------------------

// Return whether `op` keeps its composite kernel, which is better than a node: it draws into new
// memory, makes memory by the modes at the call, iterates over lists, has arguments on the CPU, or
// has error messages of its own.
bool uses_composite_kernel(const OperatorHandle& op) {
  const auto& name = op.operator_name().name;
  return is_random(op) || name.starts_with("aten::_foreach") ||
         name.starts_with("aten::_pack_padded_sequence") || name == "aten::_conj" ||
         name == "aten::block_diag" || name == "aten::_neg_view" || name == "aten::empty_like" ||
         name == "aten::empty_permuted" || name == "aten::new_empty" ||
         name == "aten::new_empty_strided" || name == "aten::_thnn_fused_lstm_cell_backward";
}

// Register `record` for ops that have composite kernels. Composite kernels have priority over a
// fallback and would decompose ops that devices support.
void register_over_composites(torch::Library& library) {
  for_each_aten_operator([&](const OperatorHandle& op) {
    if (op.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) return;
    const bool is_composite =
        op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
        op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
    if (!is_composite || uses_composite_kernel(op)) return;
    if (traits_of(op).kind == OperatorKind::other) return;
    library.impl(c10::toString(op.operator_name()).c_str(),
                 torch::CppFunction::makeFromBoxedFunction<&boxed_record>());
  });
}

} // namespace

void register_kernels() {
  static torch::Library every(torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__,
                              __LINE__);
  every.fallback(torch::CppFunction::makeFromBoxedFunction<&boxed_record>());
  static torch::Library aten(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__,
                             __LINE__);
  aten.impl("empty.memory_format", &empty);
  aten.impl("empty_strided", &empty_strided);
  aten.impl("copy_", &copy_);
  aten.impl("_to_copy", torch::CppFunction::makeFromBoxedFunction<&to_copy>());
  aten.impl("set_.source_Storage_storage_offset", &set_to_part);
  aten.impl("set_.source_Storage", &set_to_storage);
  aten.impl("set_.source_Tensor", &set_to_tensor);
  aten.impl("set_", &set_to_nothing);
  aten.impl("as_strided_", &as_strided_);
  aten.impl("fill_.Scalar", &fill_with);
  aten.impl("zero_", &zero_);
  aten.impl("_efficientzerotensor", &efficient_zeros);
  aten.impl("native_dropout", &native_dropout);
  aten.impl("native_batch_norm", &native_batch_norm);
  aten.impl("_thnn_fused_lstm_cell", &lstm_cell);
  aten.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  aten.impl("_thnn_fused_gru_cell", &gru_cell);
  aten.impl("_thnn_fused_gru_cell_backward", &gru_cell_backward);
  for (const char* name : {"_local_scalar_dense", "resize_", "equal"})
    aten.impl(name, torch::CppFunction::makeFromBoxedFunction<&boxed_call_on_cpu>());
  register_over_composites(aten);
  // The choice of fused attention is the same as on the CPU.
  at::native::_fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(
      &at::native::_fused_sdp_choice_cpp);
}

} // namespace torchmdla::acap
