#include "formats.h"

#include "views.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <memory>
#include <numeric>
#include <vector>

namespace torchmdla::lazy {

using c10::DispatchKey;
using torch::jit::Stack;

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

// In front of a copying operator whose last argument is a format.
class CopyKernel : public c10::OperatorKernel {
public:
  explicit CopyKernel(const c10::OperatorHandle& op)
      : original_(op.getComputedKernelForDispatchKey(DispatchKey::Functionalize)),
        num_arguments_(op.schema().arguments().size()) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    auto& self = torch::jit::peek(*stack, 0, num_arguments_);
    auto& format = stack->back();
    if (format.isNone() || !has_channels_last(format.toMemoryFormat()) || !is_lazy(self.toTensor()))
      return original_.callBoxed(op, keys, stack);
    const auto rank = rank_of(format.toMemoryFormat());
    TORCH_CHECK(self.toTensor().dim() == rank, "required rank ", rank, " tensor to use ",
                rank == 4 ? "channels_last" : "channels_last_3d", " format");
    self = self.toTensor().permute(channels_behind(rank));
    format = c10::MemoryFormat::Contiguous;
    original_.callBoxed(op, keys, stack);
    stack->back() = stack->back().toTensor().permute(channels_in_front(rank));
  }

private:
  const c10::SafeKernelFunction original_;
  const size_t num_arguments_;
};

} // namespace

void register_formats() {
  static torch::Library formats(torch::Library::IMPL, "aten", DispatchKey::Functionalize, __FILE__,
                                __LINE__);
  for (const auto* name : {"aten::clone", "aten::_to_copy"}) {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
    formats.impl(name, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<CopyKernel>(op)));
  }
}

} // namespace torchmdla::lazy
