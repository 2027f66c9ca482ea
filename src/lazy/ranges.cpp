#include "ranges.h"

#include "deferred/aten_operators.h"
#include "views.h"

#include <ATen/ops/empty.h>

#include <array>
#include <string_view>
#include <vector>

namespace torchmdla::lazy {

namespace {

constexpr std::array<std::string_view, 4> ranges{"aten::arange", "aten::linspace", "aten::logspace",
                                                 "aten::range"};

// Write a range to `out`, which is the last argument.
void write_range(const InterceptedCall& call) {
  const auto out = call.arguments().back().toTensor();
  if (!is_lazy(out) || out.dim() == 1) return call.run_original();
  const std::vector<c10::IValue> arguments(call.arguments().begin(), call.arguments().end());
  call.arguments().back() = at::empty({0}, out.options());
  call.run_original();
  const auto range = torch::jit::pop(*call.stack).toTensor();
  if (range.numel() == out.numel()) {
    out.copy_(range.view(out.sizes()));
    call.stack->emplace_back(out);
  } else { // eager PyTorch resizes `out`
    call.stack->insert(call.stack->end(), arguments.begin(), arguments.end());
    call.run_original();
  }
}

} // namespace

Interceptor range_interceptor(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  const bool writes = !arguments.empty() && arguments.back().is_out();
  return writes && is_in(ranges, op) ? write_range : Interceptor();
}

} // namespace torchmdla::lazy
