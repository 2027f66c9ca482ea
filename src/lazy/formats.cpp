#include "formats.h"

#include "deferred/aten_operators.h"
#include "deferred/kernel_call.h"
#include "views.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>
#include <vector>

namespace torchmdla::lazy {

namespace {

bool has_channels_last(c10::MemoryFormat format) {
  return format == c10::MemoryFormat::ChannelsLast || format == c10::MemoryFormat::ChannelsLast3d;
}

int64_t rank_of(c10::MemoryFormat format) {
  return format == c10::MemoryFormat::ChannelsLast ? 4 : 5;
}

// Return the order of dimensions in contiguous memory.
using Order = std::vector<int64_t>;

Order plain_order(int64_t rank) {
  Order order(rank);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

Order channels_last_order(int64_t rank) {
  auto order = plain_order(rank);
  std::rotate(order.begin() + 1, order.begin() + 2, order.end());
  return order;
}

Order inverse_of(const Order& order) {
  Order inverse(order.size());
  for (size_t i = 0; i < order.size(); ++i)
    inverse[order[i]] = static_cast<int64_t>(i);
  return inverse;
}

template <class List> std::vector<int64_t> in_order(const List& values, const Order& order) {
  std::vector<int64_t> ordered;
  for (const auto dimension : order)
    ordered.push_back(values[dimension]);
  return ordered;
}

// Return the order of dimensions in memory, or nullopt for a tensor with gaps or overlaps.
std::optional<Order> order_by(at::IntArrayRef sizes, at::IntArrayRef strides) {
  auto order = plain_order(static_cast<int64_t>(sizes.size()));
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return strides[a] > strides[b]; });
  int64_t elements = 1;
  for (auto dimension = order.rbegin(); dimension != order.rend(); ++dimension) {
    if (sizes[*dimension] != 1 && strides[*dimension] != elements) return std::nullopt;
    elements *= sizes[*dimension];
  }
  return order;
}

constexpr std::array<std::string_view, 2> copying{"aten::clone", "aten::_to_copy"};

// Return the order of dimensions for a copy of `self` on the device, or nullopt if PyTorch's own
// order is correct.
std::optional<Order> order_of_copy(const at::Tensor& self, c10::MemoryFormat format) {
  if (format == c10::MemoryFormat::Preserve && !self.is_contiguous())
    return order_by(self.sizes(), self.strides());
  if (!has_channels_last(format)) return std::nullopt;
  const auto rank = rank_of(format);
  TORCH_CHECK(self.dim() == rank, "required rank ", rank, " tensor to use ",
              rank == 4 ? "channels_last" : "channels_last_3d", " format");
  return channels_last_order(rank);
}

// Copy in the given order of dimensions. The memory format is the last argument of the call.
void copy_in_order(const InterceptedCall& call, const std::optional<Order>& order) {
  if (!order) return call.run_original();
  auto& self = call.arguments().front();
  self = self.toTensor().permute(*order);
  call.arguments().back() = c10::MemoryFormat::Contiguous;
  call.run_original();
  auto& copy = call.stack->back();
  copy = copy.toTensor().permute(inverse_of(*order));
}

c10::MemoryFormat format_of(const InterceptedCall& call) {
  const auto& format = call.arguments().back();
  return format.isNone() ? c10::MemoryFormat::Preserve : format.toMemoryFormat();
}

bool targets_other_device(const InterceptedCall& call) {
  const auto arguments = call.arguments();
  return std::any_of(arguments.begin(), arguments.end(), [](const c10::IValue& argument) {
    return argument.isDevice() && !argument.toDevice().is_lazy();
  });
}

void copy_on_device(const InterceptedCall& call) {
  const auto& self = call.arguments().front().toTensor();
  if (!is_lazy(self) || targets_other_device(call)) return call.run_original();
  copy_in_order(call, order_of_copy(self, format_of(call)));
}

bool has_views() {
  return !c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::Functionalize);
}

void copy_to_device(const InterceptedCall& call) {
  const auto& self = call.arguments().front().toTensor();
  const bool is_dense = self.device().is_cpu() && self.layout() == at::kStrided;
  if (!is_dense || targets_other_device(call) || !has_views()) return call.run_original();
  const BelowAutograd below;
  copy_in_order(call, order_of_copy(self, format_of(call)));
}

} // namespace

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                         std::optional<at::Device> device, std::optional<bool> pin_memory) {
  const auto empty = [&](at::IntArrayRef in_memory) {
    return at::empty(in_memory, dtype, layout, device, pin_memory, std::nullopt);
  };
  const auto order = order_by(sizes, strides);
  if (!order || !has_views() || std::is_sorted(order->begin(), order->end())) return empty(sizes);
  const BelowAutograd below;
  return empty(in_order(sizes, *order)).permute(inverse_of(*order));
}

Interceptor format_interceptor(const c10::OperatorHandle& op) {
  return is_overload_in(copying, op) ? copy_on_device : Interceptor();
}

Interceptor copy_from_cpu_interceptor(const c10::OperatorHandle& op) {
  return c10::toString(op.operator_name()) == "aten::_to_copy" ? copy_to_device : Interceptor();
}

} // namespace torchmdla::lazy
