#include "recording.h"

#include "cpu_call.h"
#include "deferred/arguments.h"
#include "deferred/result_types.h"
#include "index_checks.h"
#include "operators.h"
#include "tensor.h"
#include "views.h"

#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>

#include <algorithm>
#include <atomic>
#include <unordered_set>

namespace torchmdla::acap {

using c10::IValue;
using c10::OperatorHandle;
using torch::jit::Stack;

namespace {

constexpr size_t default_most_pending_nodes = 20000;
std::atomic<size_t> most_pending_nodes{default_most_pending_nodes};

// --- devices ------------------------------------------------------------------------------------

void check_devices(const OperatorHandle& op, const std::vector<IValue>& arguments,
                   bool reads_indices) {
  for (const auto& argument : arguments)
    if (argument.isDevice()) check_index(argument.toDevice());
  if (reads_indices) return; // Indices may be on the CPU.
  std::optional<c10::Device> first, other;
  bool has_other_than_scalar = false;
  for (size_t i = 0; i < arguments.size(); ++i)
    for_each_tensor(arguments[i], [&](const at::Tensor& tensor) {
      if (!first)
        first = tensor.device();
      else if (tensor.device() != *first)
        other = tensor.device();
      // A 0-d tensor that is read may come from the CPU.
      const bool may_be_elsewhere =
          tensor.device().is_cpu() && tensor.dim() == 0 && !op.schema().arguments()[i].is_out();
      if (!is_acap(tensor) && !may_be_elsewhere) has_other_than_scalar = true;
    });
  TORCH_CHECK(!other || !has_other_than_scalar,
              "Expected all tensors to be on the same device, but found at least two devices, ",
              *first, " and ", *other, "! (when checking the arguments of ", op.operator_name(),
              ")");
}

// --- types --------------------------------------------------------------------------------------

// Return whether the CPU's results may have other strides than the meta kernel reports. Meta
// kernels describe CUDA, or no specific device. With contiguous arguments only a few ops differ;
// matrix products never do.
bool has_cpu_layout(const OperatorHandle& op, const std::vector<IValue>& arguments) {
  static const std::unordered_set<std::string> always{"aten::_fft_r2c", "aten::_linalg_svd",
                                                      "aten::linalg_eig", "aten::nonzero_static",
                                                      "aten::_native_batch_norm_legit_functional"};
  static const std::unordered_set<std::string> never{"aten::addmm", "aten::baddbmm", "aten::bmm",
                                                     "aten::mm"};
  const auto& name = op.operator_name().name;
  if (always.count(name)) return true;
  bool are_contiguous = true;
  for (const auto& argument : arguments)
    for_each_tensor(argument,
                    [&](const at::Tensor& tensor) { are_contiguous &= tensor.is_contiguous(); });
  return !are_contiguous && never.count(name) == 0;
}

// Return whether errors of `op` are worth a run on zeros of any size: its meta kernel accepts sizes
// and dtypes that the CPU's kernel rejects.
bool has_cpu_checks(const OperatorHandle& op) {
  static const std::unordered_set<std::string> names{
      "aten::as_strided_scatter", "aten::bucketize",      "aten::complex", "aten::index_add",
      "aten::index_fill",         "aten::masked_scatter", "aten::polar",   "aten::put"};
  return names.count(op.operator_name().name) != 0;
}

// Return whether `op` is a power with a boolean exponent. PyTorch's meta kernel reports another
// dtype for it than the CPU's kernel.
bool is_power_by_boolean(const OperatorHandle& op, const std::vector<IValue>& arguments) {
  return op.operator_name().name == "aten::pow" &&
         std::any_of(arguments.begin(), arguments.end(),
                     [](const IValue& argument) { return argument.isBool(); });
}

// Return whether the CPU's kernel computes `results` from zeros in an instant.
bool is_small(const std::vector<IValue>& arguments, const Results& results) {
  constexpr int64_t most_elements = 1 << 16;
  int64_t elements = 0;
  bool has_tensors = false;
  for (const auto& argument : arguments)
    for_each_tensor(argument, [&](const at::Tensor& tensor) {
      elements += tensor.numel();
      has_tensors = true;
    });
  for (const auto& result : results)
    if (result.defined()) elements += result.numel();
  return has_tensors && elements <= most_elements;
}

// Return the results of a call as meta tensors. Meta kernels accept sizes, dtypes and options that
// the CPU's kernels reject, and report other strides. The CPU's kernel therefore runs on zeros,
// except for large tensors and operators of which the meta kernel is reliable. It has run already
// for pointwise operators (`infer_types`).
std::optional<Results> infer_layouts(const OperatorHandle& op,
                                     const std::vector<IValue>& arguments) {
  if (is_power_by_boolean(op, arguments)) return std::nullopt;
  auto metas = infer_types(op, arguments);
  if (!metas || traits_of(op).kind == OperatorKind::view) return metas;
  const bool is_checked = has_cpu_checks(op) || (!is_pointwise(op) && is_small(arguments, *metas));
  if (!is_checked && !has_cpu_layout(op, arguments)) return metas;
  const auto cpu_results = call_on(c10::kCPU, op, arguments, zeros_of);
  if (!cpu_results && is_checked) return std::nullopt;
  if (!cpu_results || cpu_results->size() != metas->size()) return metas;
  for (size_t i = 0; i < metas->size(); ++i)
    if (const auto& result = (*cpu_results)[i]; result.defined()) (*metas)[i] = meta_of(result);
  return metas;
}

std::optional<Results> infer(const OperatorHandle& op, const std::vector<IValue>& arguments) {
  return infer_once(infer_layouts, op, arguments);
}

// --- nodes --------------------------------------------------------------------------------------

// Return a copy of the 0-d `tensor` that a graph may hold. A wrapped number, which would promote
// differently, is converted to the result's dtype.
at::Tensor number_tensor(const at::Tensor& tensor, const std::vector<at::Tensor>& metas) {
  const bool is_wrapped = tensor.unsafeGetTensorImpl()->is_wrapped_number();
  if (!is_wrapped || metas.empty() || !metas[0].defined() || metas[0].scalar_type() == at::kBool)
    return tensor.clone();
  return tensor.to(metas[0].scalar_type(), /*non_blocking=*/false, /*copy=*/true);
}

ValuePtr operand_of(const at::Tensor& tensor, const std::vector<at::Tensor>& metas) {
  if (is_acap(tensor)) return value_of(tensor);
  return std::make_shared<Value>(tensor.dim() == 0 ? number_tensor(tensor, metas) : tensor.clone());
}

Operand operand_of(const IValue& argument, const std::vector<at::Tensor>& metas) {
  if (argument.isTensor()) {
    if (!argument.toTensor().defined()) return IValue();
    return operand_of(argument.toTensor(), metas);
  }
  if (is_list_of_tensors(argument)) {
    std::vector<ValuePtr> values;
    for (const auto& element : argument.toListRef())
      values.push_back(element.isTensor() && element.toTensor().defined()
                           ? operand_of(element.toTensor(), metas)
                           : nullptr);
    return values;
  }
  if (argument.isDevice()) return IValue(c10::Device(c10::kCPU));
  return argument;
}

// Set the dtype of a factory op to the default dtype at recording time, which may differ when the
// graph runs.
void fix_dtype(const OperatorHandle& op, const std::vector<at::Tensor>& metas,
               std::vector<Operand>& operands) {
  const auto index = op.schema().argumentIndexWithName("dtype");
  if (!index || !op.schema().argumentIndexWithName("device") || metas.size() != 1) return;
  auto* dtype = std::get_if<IValue>(&operands[*index]);
  if (dtype && dtype->isNone()) *dtype = static_cast<int64_t>(metas[0].scalar_type());
}

// Append a call to the graph. If a tensor is a wrapped number, use the overload for numbers.
std::vector<ValuePtr> append_call(OperatorHandle op, const std::vector<IValue>& arguments,
                                  const std::vector<at::Tensor>& metas) {
  std::vector<Operand> operands;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto& argument = arguments[i];
    // A boolean remains a tensor, because it promotes differently from a number.
    const bool is_number = argument.isTensor() && argument.toTensor().defined() &&
                           argument.toTensor().unsafeGetTensorImpl()->is_wrapped_number() &&
                           argument.toTensor().scalar_type() != at::kBool;
    const auto twin = is_number ? scalar_twin(op, i) : std::nullopt;
    if (twin) {
      op = *twin;
      operands.emplace_back(IValue(argument.toTensor().item()));
    } else {
      operands.push_back(operand_of(argument, metas));
    }
  }
  fix_dtype(op, metas, operands);
  return append(op, std::move(operands), metas);
}

at::Tensor tensor_of(const ValuePtr& value) {
  return value ? make_tensor(value) : at::Tensor();
}

// Push results in the form that the schema declares.
void push_results(const OperatorHandle& op, const std::vector<at::Tensor>& results, Stack* stack) {
  const auto& returns = op.schema().returns();
  if (returns.size() == 1 && returns[0].type()->kind() == c10::TypeKind::ListType)
    stack->emplace_back(c10::List<at::Tensor>(results));
  else
    stack->insert(stack->end(), results.begin(), results.end());
}

bool record_functional(const OperatorHandle& op, const std::vector<IValue>& arguments,
                       Stack* stack) {
  const auto metas = infer(op, arguments);
  if (!metas) return false;
  std::vector<at::Tensor> results;
  for (const auto& value : append_call(op, arguments, *metas))
    results.push_back(tensor_of(value));
  push_results(op, results, stack);
  return true;
}

bool record_view(const OperatorHandle& op, const std::vector<IValue>& arguments, Stack* stack) {
  const auto metas = infer(op, arguments);
  if (!metas) return false;
  push_results(op, make_views(op, arguments, *metas), stack);
  return true;
}

// --- writes -------------------------------------------------------------------------------------

// Return whether a result of type `meta` can be written to `argument` unchanged. Otherwise eager
// PyTorch resizes the argument or raises an error. Most kernels require that an `out` argument has
// the result's dtype. In-place kernels do not write real results to complex tensors.
bool can_write(const IValue& argument, const at::Tensor& meta, bool is_out) {
  if (argument.isNone()) return true;
  const auto& tensor = argument.toTensor();
  if (!tensor.defined()) return true;
  return meta.defined() && is_acap(tensor) && tensor.sizes() == meta.sizes() &&
         (is_out ? meta.scalar_type() == tensor.scalar_type()
                 : c10::canCast(meta.scalar_type(), tensor.scalar_type()) &&
                       !(tensor.is_complex() && c10::isFloatingType(meta.scalar_type()))) &&
         !Geometry::of(tensor).may_overlap() && !tensor.is_conj() && !tensor.is_neg();
}

// Return whether an argument shares memory with a written one. The result then depends on the
// kernel's order, or the kernel rejects it. A pointwise op on the same elements is excepted,
// because it reads each element where it writes it.
bool has_memory_hazard(const OperatorHandle& op, const OperatorTraits& traits,
                       const std::vector<IValue>& arguments) {
  const auto overlaps = [&](const at::Tensor& written, const at::Tensor& other) {
    if (!is_acap(other)) return false;
    const auto status = at::get_overlap_status(written, other);
    return status == at::MemOverlapStatus::Partial ||
           (status == at::MemOverlapStatus::Full && !is_pointwise(op));
  };
  bool has_hazard = false;
  for (const auto index : traits.written) {
    if (!arguments[index].isTensor() || !arguments[index].toTensor().defined()) continue;
    for (size_t i = 0; i < arguments.size(); ++i)
      if (i != index)
        for_each_tensor(arguments[i], [&](const at::Tensor& other) {
          has_hazard |= overlaps(arguments[index].toTensor(), other);
        });
  }
  return has_hazard;
}

ValuePtr cast(const ValuePtr& value, at::ScalarType dtype) {
  if (value->meta.scalar_type() == dtype) return value;
  return append("aten::_to_copy", "",
                {value, static_cast<int64_t>(dtype), IValue(), IValue(), IValue(), false, IValue()},
                at::Tensor(at::detail::empty_meta(value->meta.sizes(), dtype)));
}

} // namespace

void write_content(const at::Tensor& tensor, const ValuePtr& content) {
  const auto value = cast(content, tensor.scalar_type());
  // The CPU's kernel determines the order of writes to overlapping elements, or rejects them.
  if (!Geometry::of(tensor).may_overlap() && write(tensor, value)) return;
  compute({value});
  write_on_cpu(tensor, [&](at::Tensor& alias) { alias.copy_(value->tensor); });
}

namespace {

// Push the results of a mutating op. An op returns its written arguments in its own order; all
// other results are new.
void push_written(const OperatorHandle& op, const OperatorTraits& traits,
                  const std::vector<IValue>& arguments, const std::vector<ValuePtr>& values,
                  Stack* stack) {
  size_t next_fresh = 0;
  for (const auto& returned : op.schema().returns()) {
    const auto index =
        std::find_if(traits.written.begin(), traits.written.end(), [&](size_t written) {
          return returned.alias_info() &&
                 op.schema().arguments()[written].alias_info()->beforeSets() ==
                     returned.alias_info()->beforeSets();
        });
    if (index == traits.written.end())
      stack->emplace_back(tensor_of(values[next_fresh++]));
    else
      stack->push_back(arguments[*index]);
  }
}

bool record_mutating(const OperatorHandle& op, const OperatorTraits& traits,
                     const std::vector<IValue>& arguments, Stack* stack) {
  if (has_memory_hazard(op, traits, arguments)) return false;
  std::vector<IValue> inputs;
  for (size_t i = 0; i < arguments.size(); ++i)
    if (std::find(traits.outs.begin(), traits.outs.end(), i) == traits.outs.end())
      inputs.push_back(arguments[i]);
  const auto metas = infer(*traits.functional, inputs);
  if (!metas) return false;
  for (size_t i = 0; i < traits.written.size(); ++i)
    if (!can_write(arguments[traits.written[i]], (*metas)[traits.fresh_results + i],
                   /*is_out=*/!traits.outs.empty()))
      return false;
  const auto values = append_call(*traits.functional, inputs, *metas);
  for (size_t i = 0; i < traits.written.size(); ++i) {
    const auto& argument = arguments[traits.written[i]];
    if (argument.isTensor() && argument.toTensor().defined())
      write_content(argument.toTensor(), values[traits.fresh_results + i]);
  }
  push_written(op, traits, arguments, values, stack);
  return true;
}

bool try_to_record(const OperatorHandle& op, const std::vector<IValue>& arguments, Stack* stack) {
  const auto& traits = traits_of(op);
  switch (traits.kind) {
  case OperatorKind::functional:
    return record_functional(op, arguments, stack);
  case OperatorKind::mutating:
    return record_mutating(op, traits, arguments, stack);
  case OperatorKind::view:
    return record_view(op, arguments, stack);
  case OperatorKind::other:
    break;
  }
  return false;
}

} // namespace

void record(const OperatorHandle& op, Stack* stack) {
  const auto arguments = torch::jit::pop(*stack, op.schema().arguments().size());
  check_devices(op, arguments, /*reads_indices=*/is_indexing(op));
  if (!has_faulty_indices(op, arguments) && try_to_record(op, arguments, stack)) {
    // Errors of these values are ignored here and reported when the values are read.
    if (pending_nodes() > most_pending_nodes.load(std::memory_order_relaxed)) compute_all();
    return;
  }
  stack->insert(stack->end(), arguments.begin(), arguments.end());
  fall_back_to_cpu(op, stack);
}

void set_most_pending_nodes(size_t most) {
  most_pending_nodes = most;
}

} // namespace torchmdla::acap
