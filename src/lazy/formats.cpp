#include "formats.h"

#include "aten_operators.h"
#include "views.h"

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

// The dimensions as they lie in memory.
std::vector<int64_t> channels_behind(int64_t rank) {
  std::vector<int64_t> order(rank);
  std::iota(order.begin() + 1, order.end() - 1, 2);
  order.back() = 1;
  return order;
}

// And back.
std::vector<int64_t> channels_in_front(int64_t rank) {
  std::vector<int64_t> order(rank);
  order[1] = rank - 1;
  std::iota(order.begin() + 2, order.end(), 1);
  return order;
}

constexpr std::array<std::string_view, 2> copying{"aten::clone", "aten::_to_copy"};

// The format is the last argument.
void copy_in_format(const InterceptedCall& call) {
  auto &self = call.arguments().front(), &format = call.arguments().back();
  if (format.isNone() || !has_channels_last(format.toMemoryFormat()) || !is_lazy(self.toTensor()))
    return call.run_original();
  const auto rank = rank_of(format.toMemoryFormat());
  TORCH_CHECK(self.toTensor().dim() == rank, "required rank ", rank, " tensor to use ",
              rank == 4 ? "channels_last" : "channels_last_3d", " format");
  self = self.toTensor().permute(channels_behind(rank));
  format = c10::MemoryFormat::Contiguous;
  call.run_original();
  auto& copy = call.stack->back();
  copy = copy.toTensor().permute(channels_in_front(rank));
}

} // namespace

Interceptor format_interceptor(const c10::OperatorHandle& op) {
  return is_overload_in(copying, op) ? copy_in_format : Interceptor();
}

} // namespace torchmdla::lazy
