#include "result_types.h"

#include "arguments.h"
#include "aten_operators.h"
#include "group/signature.h"
#include "kernel_call.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/hash.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string_view>
#include <unordered_map>

namespace torchmdla {

using c10::IValue;
using c10::OperatorHandle;
using torch::jit::Stack;

namespace {

bool is_wrapped_number(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->is_wrapped_number();
}

// Return `tensor`, marked to promote as `model` does.
at::Tensor with_promotion_of(const at::Tensor& model, at::Tensor tensor) {
  if (is_wrapped_number(model)) tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

at::Tensor zeros(at::IntArrayRef sizes, at::IntArrayRef strides, const at::Tensor& model) {
  const auto zeros_tensor =
      at::Tensor(at::detail::empty_strided_cpu(sizes, strides, model.scalar_type()));
  std::memset(zeros_tensor.mutable_data_ptr(), 0, zeros_tensor.storage().nbytes());
  return with_promotion_of(model, zeros_tensor);
}

// Return a one with the dtype and number of dimensions of `tensor`, and at most one element. Some
// kernels reject a zero, as a divisor.
at::Tensor one_of(const at::Tensor& tensor) {
  auto sizes = tensor.sizes().vec();
  for (auto& size : sizes)
    size = std::min<int64_t>(size, 1);
  const BelowAutograd below;
  return zeros(sizes, std::vector<int64_t>(sizes.size(), 1), tensor).fill_(1);
}

// Operators whose meta kernels describe CUDA, where results have other sizes or dtypes.
constexpr std::array<std::string_view, 3> unlike_meta{
    "aten::_embedding_bag", "aten::_embedding_bag_forward_only", "aten::native_layer_norm"};

// Return whether an op may combine elements of several dtypes one by one, although it is not tagged
// as pointwise.
bool promotes_elements(const std::vector<IValue>& arguments) {
  std::optional<at::Tensor> first, first_with_sizes;
  bool has_several_dtypes = false, has_several_sizes = false;
  for (const auto& argument : arguments)
    for_each_tensor(argument, [&](const at::Tensor& tensor) {
      if (is_wrapped_number(tensor)) return;
      if (!first) first = tensor;
      has_several_dtypes |= tensor.scalar_type() != first->scalar_type();
      if (tensor.dim() == 0) return;
      if (!first_with_sizes) first_with_sizes = tensor;
      has_several_sizes |= tensor.sizes() != first_with_sizes->sizes();
    });
  return has_several_dtypes && !has_several_sizes;
}

} // namespace

at::Tensor meta_of(const at::Tensor& tensor) {
  return with_promotion_of(tensor, at::Tensor(at::detail::empty_strided_meta(
                                       tensor.sizes(), tensor.strides(), tensor.scalar_type())));
}

bool is_pointwise(const OperatorHandle& op) {
  // PyTorch does not tag this one.
  return op.hasTag(at::Tag::pointwise) || op.operator_name().name == "aten::floor_divide";
}

at::Tensor zeros_of(const at::Tensor& tensor) {
  return zeros(tensor.sizes(), tensor.strides(), tensor);
}

std::optional<Results> call_on(c10::Device device, const OperatorHandle& op,
                               const std::vector<IValue>& arguments, StandIn stand_in) {
  const auto change = [&](const at::Tensor& tensor) {
    return tensor.device().is_cpu() && tensor.dim() == 0 ? tensor : stand_in(tensor);
  };
  Stack stack;
  for (const auto& argument : arguments)
    stack.push_back(argument.isDevice() ? IValue(device) : with_tensors(argument, change));
  try {
    call_kernel(op, &stack);
  } catch (const std::exception&) {
    return std::nullopt;
  }
  Results results;
  for (const auto& result : stack) {
    if (!result.isTensorList() && !result.isTensor()) return std::nullopt;
    if (result.isTensor())
      results.push_back(result.toTensor());
    else
      for (const at::Tensor& element : result.toTensorVector())
        results.push_back(element);
  }
  const bool are_there = std::all_of(results.begin(), results.end(), [&](const at::Tensor& result) {
    return !result.defined() || (result.device() == device && result.layout() == c10::kStrided);
  });
  return are_there ? std::optional(std::move(results)) : std::nullopt;
}

std::optional<Results> infer_types(const OperatorHandle& op, const std::vector<IValue>& arguments) {
  auto metas = call_on(c10::kMeta, op, arguments, meta_of);
  const bool has_sizes_of_its_own = is_in(unlike_meta, op);
  if (!metas || !(has_sizes_of_its_own || is_pointwise(op) || promotes_elements(arguments)))
    return metas;
  const auto shown = call_on(c10::kCPU, op, arguments, has_sizes_of_its_own ? zeros_of : one_of);
  if (!shown && is_pointwise(op)) return std::nullopt; // The CPU's kernel rejects the dtypes.
  if (!shown || shown->size() != metas->size()) return metas;
  for (size_t i = 0; i < metas->size(); ++i) {
    auto& meta = (*metas)[i];
    const auto& result = (*shown)[i];
    if (!meta.defined() || !result.defined()) continue;
    if (has_sizes_of_its_own)
      meta = meta_of(result);
    else if (meta.scalar_type() != result.scalar_type())
      meta = at::detail::empty_strided_meta(meta.sizes(), meta.strides(), result.scalar_type());
  }
  return metas;
}

namespace {

// Append the types of the arguments. Return false if the result depends on values that a signature
// does not have (the ends of a range).
bool append_types(const std::vector<IValue>& arguments, Signature& signature) {
  bool has_tensors = false;
  for (const auto& argument : arguments) {
    for_each_tensor(argument, [&](const at::Tensor& tensor) {
      has_tensors = true;
      signature.push_back(tensor.device().is_cpu() | is_wrapped_number(tensor) << 1);
      // A signature has a class of strides. Strides of sizes 1 also matter here.
      signature.append(tensor.strides().begin(), tensor.strides().end());
    });
    if (!is_list_of_optional_tensors(argument)) {
      if (!append_signature(argument, signature)) return false;
      // A signature does not have floats, which vary. Kernels reject some by their kind.
      if (argument.isDouble())
        signature.push_back(std::fpclassify(argument.toDouble()) << 1 |
                            std::signbit(argument.toDouble()));
      continue;
    }
    signature.push_back(static_cast<int64_t>(argument.toListRef().size()));
    for (const auto& element : argument.toListRef())
      append_signature(element, signature);
  }
  return has_tensors;
}

} // namespace

std::optional<Results> infer_once(Inference infer, const OperatorHandle& op,
                                  const std::vector<IValue>& arguments) {
  constexpr size_t most_known = 8192;
  using Key = std::vector<int64_t>;
  thread_local std::unordered_map<Key, Results, c10::hash<Key>> known;
  Signature signature{static_cast<int64_t>(reinterpret_cast<intptr_t>(infer)),
                      static_cast<int64_t>(std::hash<OperatorHandle>()(op)),
                      static_cast<int64_t>(c10::get_default_dtype_as_scalartype()),
                      at::globalContext().deterministicAlgorithms()};
  // Kernels warn about each call then.
  const bool warns = at::globalContext().deterministicAlgorithmsWarnOnly();
  if (warns || !append_types(arguments, signature)) return infer(op, arguments);
  Key key(signature.begin(), signature.end());
  if (const auto entry = known.find(key); entry != known.end()) return entry->second;
  auto results = infer(op, arguments);
  if (results && known.size() >= most_known) known.clear();
  if (results) known.emplace(std::move(key), *results);
  return results;
}

} // namespace torchmdla
