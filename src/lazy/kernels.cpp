#include "kernels.h"

#include "batch_norm.h"
#include "custom_ops.h"
#include "deferred/aten_operators.h"
#include "eager_calls.h"
#include "formats.h"
#include "group/group_autograd.h"
#include "operator_node.h"
#include "random.h"
#include "ranges.h"
#include "sync_on_read.h"
#include "views.h"
#include "wrapped_scalars.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>
#include <ATen/ops/scaled_dot_product_attention_ops.h>
#include <ATen/ops/select_copy.h>
#include <ATen/ops/slice_copy.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

namespace torchmdla::lazy {

using c10::DispatchKey;
using torch::jit::Stack;

namespace {

// --- any operator ------------------------------------------------------------------------------

// Operators whose PyTorch kernels are wrong on lazy tensors. They return uninitialised results,
// wrong values or a wrong dtype, or fail for an unneeded result or a tensor without dimensions.
constexpr std::array<std::string_view, 11> replaced{"aten::pixel_shuffle",
                                                    "aten::pixel_unshuffle",
                                                    "aten::convolution_backward",
                                                    "aten::_convolution",
                                                    "aten::index_select",
                                                    "aten::native_dropout_backward",
                                                    "aten::linalg_pinv",
                                                    "aten::silu_backward",
                                                    "aten::smooth_l1_loss_backward",
                                                    "aten::stack",
                                                    "aten::trace"};

// Operators whose PyTorch kernels make graph inputs of values that should be constants of a call.
// These are numbers that would become tensors of doubles (in a comparison), and numbers that select
// the computation (a norm's order). For random numbers, each run of the graph would draw anew.
constexpr std::array<std::string_view, 13> recorded{
    "aten::bernoulli",          "aten::clamp",
    "aten::clamp_min",          "aten::eq.Scalar",
    "aten::ge.Scalar",          "aten::gt.Scalar",
    "aten::le.Scalar",          "aten::lt.Scalar",
    "aten::ne.Scalar",          "aten::masked_fill.Scalar",
    "aten::norm.ScalarOpt_dim", "aten::pow.Tensor_Scalar",
    "aten::std.correction"};

// Operators that change the device, layout or memory of a tensor. They are not recorded.
constexpr std::array<std::string_view, 10> unrecorded{
    "aten::clone", "aten::copy", "aten::lift",      "aten::_lazy_clone", "aten::set",
    "aten::zero",  "aten::fill", "aten::resize_as", "aten::resize",      "aten::_unsafe_view"};

// Record a call as IR if possible; otherwise run it at once on the CPU.
void record_or_run(const c10::OperatorHandle& op, Stack* stack) {
  if (record_call(op, stack)) return;
  count_eager(op);
  at::native::cpu_fallback(op, stack);
}

// Return whether `record_or_run` is the best kernel for `op`. PyTorch's kernel may be missing or
// wrong, or may be composed of other operators. A composite kernel writes to memory below
// functionalisation, so its writes are lost or make the graph run.
bool needs_own_kernel(const c10::OperatorHandle& op) {
  if (is_in(replaced, op) || is_overload_in(recorded, op)) return true;
  if (op.hasKernelForDispatchKey(DispatchKey::Lazy) ||
      op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd))
    return false;
  if (!op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd)) return true;
  const auto& arguments = op.schema().arguments();
  const bool makes_new = std::any_of(arguments.begin(), arguments.end(), [](const auto& argument) {
    return argument.name() == "device";
  });
  return !makes_new && !is_in(unrecorded, op) && can_record(op);
}

// --- views and memory --------------------------------------------------------------------------

// Kernels for operators that return lists, for which PyTorch generates no IR.
std::vector<at::Tensor> split(const at::Tensor& self, int64_t size, int64_t dim) {
  const auto total = self.size(dim);
  std::vector<at::Tensor> parts;
  for (int64_t start = 0; start == 0 || start < total; start += std::max<int64_t>(size, 1))
    parts.push_back(at::slice_copy(self, dim, start, std::min(start + size, total)));
  return parts;
}

std::vector<at::Tensor> split_with_sizes(const at::Tensor& self, at::IntArrayRef sizes,
                                         int64_t dim) {
  std::vector<at::Tensor> parts;
  int64_t start = 0;
  for (const auto size : sizes) {
    parts.push_back(at::slice_copy(self, dim, start, start + size));
    start += size;
  }
  return parts;
}

std::vector<at::Tensor> unbind(const at::Tensor& self, int64_t dim) {
  std::vector<at::Tensor> parts;
  for (int64_t i = 0; i < self.size(dim); ++i)
    parts.push_back(at::select_copy(self, dim, i));
  return parts;
}

// Return whether the tensors have equal numbers of elements. A lazy value has its own memory, which
// cannot be inspected.
bool has_same_storage_numel(const at::Tensor& self, const at::Tensor& other) {
  return self.numel() == other.numel();
}

// --- operators that PyTorch decomposes -----------------------------------------------------------

bool needs_gradient(const at::Tensor& tensor) {
  return tensor.defined() && tensor.requires_grad();
}

// Record attention as one operator if gradients are not needed.
at::Tensor attention(c10::DispatchKeySet keys, const at::Tensor& query, const at::Tensor& key,
                     const at::Tensor& value, const std::optional<at::Tensor>& mask, double dropout,
                     bool is_causal, std::optional<double> scale, bool enable_gqa) {
  const bool differentiable =
      c10::GradMode::is_enabled() && (needs_gradient(query) || needs_gradient(key) ||
                                      needs_gradient(value) || (mask && needs_gradient(*mask)));
  if (differentiable || dropout != 0)
    return at::native::scaled_dot_product_attention(query, key, value, mask, dropout, is_causal,
                                                    scale, enable_gqa);
  return at::_ops::scaled_dot_product_attention::redispatch(keys & c10::after_autograd_keyset,
                                                            query, key, value, mask, dropout,
                                                            is_causal, scale, enable_gqa);
}

// Decompose `op` if gradients are needed. Some operators (`std`) get their derivatives by
// decomposition, but PyTorch has kernels of this device for them and none for autograd.
void decompose_for_gradients(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                             torch::jit::Stack* stack) {
  if (needs_gradients(torch::jit::last(*stack, op.schema().arguments().size())))
    op.callBoxedForDispatchKey(DispatchKey::CompositeImplicitAutograd, *stack);
  else
    op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
}

bool lacks_derivative(const c10::OperatorHandle& op) {
  return !op.schema().is_mutable() &&
         op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) &&
         op.hasKernelForDispatchKey(DispatchKey::Lazy) &&
         !op.hasKernelForDispatchKey(DispatchKey::AutogradLazy);
}

// --- registration --------------------------------------------------------------------------------

// Interceptors in front of PyTorch's own kernels. Later entries are in front of earlier ones.
struct Interception {
  DispatchKey key;
  Interceptor (*interceptor_of)(const c10::OperatorHandle& op);
};
constexpr std::array<Interception, 7> interceptions{{
    {DispatchKey::Lazy, number_interceptor},
    {DispatchKey::Lazy, read_interceptor},
    {DispatchKey::Lazy, copy_from_cpu_interceptor},
    {DispatchKey::Functionalize, view_interceptor},
    {DispatchKey::Functionalize, format_interceptor},
    {DispatchKey::Functionalize, batch_norm_interceptor},
    {DispatchKey::Functionalize, range_interceptor},
}};

void intercept_where_needed(const c10::OperatorHandle& op) {
  for (const auto& [key, interceptor_of] : interceptions)
    if (auto interceptor = interceptor_of(op)) intercept(op, key, std::move(interceptor));
}

class NoWarnings : public c10::WarningHandler {
public:
  void process(const c10::Warning&) override {}
};

} // namespace

void register_kernels() {
  // PyTorch warns when a kernel replaces another one.
  NoWarnings silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  for_each_aten_operator(intercept_where_needed);
  static torch::Library below(torch::Library::IMPL, "aten", DispatchKey::Lazy, __FILE__, __LINE__);
  below.impl("split_copy.Tensor", &split);
  below.impl("split_with_sizes_copy", &split_with_sizes);
  below.impl("unsafe_split.Tensor", &split);
  below.impl("unsafe_split_with_sizes", &split_with_sizes);
  below.impl("unbind_copy.int", &unbind);
  below.impl("empty_strided", &empty_strided);
  below.impl("_has_same_storage_numel", &has_same_storage_numel);
  below.impl("scaled_dot_product_attention",
             torch::CppFunction::makeFromBoxedFunction<&record_or_run>());
  static torch::Library autograd(torch::Library::IMPL, "aten", DispatchKey::AutogradLazy, __FILE__,
                                 __LINE__);
  autograd.impl("scaled_dot_product_attention", &attention);
  for_each_aten_operator([](const c10::OperatorHandle& op) {
    if (needs_own_kernel(op))
      below.impl(c10::toString(op.operator_name()).c_str(),
                 torch::CppFunction::makeFromBoxedFunction<&record_or_run>());
  });
  for_each_aten_operator([](const c10::OperatorHandle& op) {
    if (lacks_derivative(op))
      autograd.impl(c10::toString(op.operator_name()).c_str(),
                    torch::CppFunction::makeFromBoxedFunction<&decompose_for_gradients>());
  });
  register_random();
  register_foreign_operators();
}

} // namespace torchmdla::lazy
