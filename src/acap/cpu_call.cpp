#include "cpu_call.h"

#include "base/forks.h"
#include "deferred/arguments.h"
#include "deferred/kernel_call.h"
#include "generator.h"
#include "group/statistics.h"
#include "operators.h"
#include "tensor.h"

#include <algorithm>

namespace torchmdla::acap {

using torch::jit::Stack;

namespace {

struct Alias {
  at::Tensor tensor; // on acap
  at::Tensor cpu;
  bool is_written;
};

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() && argument.alias_info()->isWrite();
}

class CpuCall {
public:
  CpuCall(const c10::OperatorHandle& op, Stack* stack) : op_(op), stack_(stack) {}

  void run() {
    const auto& schema = op_.schema();
    const auto arguments = torch::jit::pop(*stack_, schema.arguments().size());
    compute_inputs(arguments);
    // Written arguments come first: if others hold the content, a write moves it to new memory.
    for (const bool written : {true, false})
      for (size_t i = 0; i < arguments.size(); ++i)
        if (is_written(schema.arguments()[i]) == written) add_aliases(arguments[i], written);
    for (const auto& argument : arguments)
      stack_->push_back(on_cpu(argument));
    call_kernel(op_, stack_);
    for (const auto& alias : aliases_)
      if (alias.is_written) handle_write(alias.tensor, alias.cpu);
    const auto results = torch::jit::pop(*stack_, schema.returns().size());
    for (const auto& result : results)
      stack_->push_back(with_tensors(result, [&](const at::Tensor& cpu) { return on_acap(cpu); }));
  }

private:
  // Compute the values of all acap arguments in one run.
  static void compute_inputs(const std::vector<c10::IValue>& arguments) {
    std::vector<ValuePtr> values;
    for (const auto& argument : arguments)
      for_each_tensor(argument, [&](const at::Tensor& tensor) {
        if (!is_acap(tensor)) return;
        const ForkSafeLock guard(graph_mutex());
        if (const auto& value = Storage::of(tensor).value()) values.push_back(value);
      });
    compute(values);
  }

  void add_aliases(const c10::IValue& argument, bool is_written) {
    for_each_tensor(argument, [&](const at::Tensor& tensor) {
      if (!is_acap(tensor) || find(tensor)) return;
      const bool shares = std::any_of(aliases_.begin(), aliases_.end(), [&](const Alias& alias) {
        return alias.is_written && alias.tensor.storage().is_alias_of(tensor.storage());
      });
      // The content of an aliased written argument is already held by this call's aliases only.
      auto cpu = is_written && !shares ? cpu_alias_for_writing(tensor) : cpu_alias(tensor);
      aliases_.push_back({tensor, std::move(cpu), is_written});
    });
  }

  const Alias* find(const at::Tensor& tensor) const {
    const auto entry = std::find_if(aliases_.begin(), aliases_.end(), [&](const Alias& alias) {
      return alias.tensor.is_same(tensor);
    });
    return entry == aliases_.end() ? nullptr : &*entry;
  }

  c10::IValue on_cpu(const c10::IValue& argument) const {
    if (argument.isDevice() && argument.toDevice().type() == device_type)
      return c10::Device(c10::kCPU);
    if (argument.isGenerator()) return cpu_generator(argument.toGenerator());
    return with_tensors(argument, [&](const at::Tensor& tensor) {
      return is_acap(tensor) ? find(tensor)->cpu : tensor;
    });
  }

  at::Tensor on_acap(const at::Tensor& cpu) const {
    TORCH_CHECK_NOT_IMPLEMENTED(cpu.layout() == c10::kStrided && !cpu.is_quantized() &&
                                    !cpu.is_nested(),
                                op_.operator_name(),
                                " makes a tensor that is not dense. The acap device has dense "
                                "tensors only; move the operands to the CPU first.");
    for (const auto& alias : aliases_)
      if (alias.cpu.is_same(cpu)) return alias.tensor;
    for (const auto& alias : aliases_)
      if (alias.cpu.storage().is_alias_of(cpu.storage()))
        return make_view(alias.tensor, Geometry::of(cpu), nullptr);
    return wrap_cpu_tensor(cpu);
  }

  const c10::OperatorHandle& op_;
  Stack* stack_;
  std::vector<Alias> aliases_;
};

} // namespace

void call_on_cpu(const c10::OperatorHandle& op, Stack* stack) {
  CpuCall(op, stack).run();
}

void fall_back_to_cpu(const c10::OperatorHandle& op, Stack* stack) {
  if (!is_random(op))
    statistics().fallbacks.count("acap: " + c10::toString(op.operator_name()) + " ran on the CPU");
  call_on_cpu(op, stack);
}

} // namespace torchmdla::acap
