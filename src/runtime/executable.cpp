#include "executable.h"

#include "base/aligned_memory.h"

#include "base/python_lock.h"
#include "device_calls.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/record_function.h>
#include <c10/util/ApproximateClock.h>
#include <c10/util/SmallVector.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <map>
#include <set>

namespace torchmdla {

using Source = InputBinding::Source;

namespace {

using Numbers = c10::SmallVector<int64_t, 8>;

Numbers at(const std::vector<int64_t>& numbers, const Varying& varying,
           c10::ArrayRef<int64_t> symbols) {
  Numbers result(numbers.begin(), numbers.end());
  for (const auto& [dimension, polynomial] : varying)
    result[dimension] = polynomial.at(symbols);
  return result;
}

// Allocate a quantised tensor with the layout of its integers.
at::Tensor allocate_quantised(const OutputTensor& output) {
  const auto dtype = output.dtype == at::kByte ? at::kQUInt8 : at::kQInt8;
  const auto flat = at::_empty_affine_quantized(
      {c10::multiply_integers(output.sizes)}, at::device(at::kCPU).dtype(dtype),
      output.quantisation->scale, output.quantisation->zero_point);
  return flat.as_strided(output.sizes, output.strides);
}

at::Tensor allocate(const OutputTensor& output, c10::ArrayRef<int64_t> symbols) {
  if (output.quantisation) return allocate_quantised(output);
  if (symbols.empty())
    return at::detail::empty_strided_cpu(output.sizes, output.strides, output.dtype);
  return at::detail::empty_strided_cpu(at(output.sizes, output.varying_sizes, symbols),
                                       at(output.strides, output.varying_strides, symbols),
                                       output.dtype);
}

const at::Tensor& tensor_of(const InputBinding& binding, c10::ArrayRef<c10::IValue> values) {
  if (binding.source == Source::constant) return binding.constant;
  const auto& value = values[binding.input];
  return (binding.element ? value.toListRef().at(*binding.element) : value).toTensor();
}

bool accepts(const InputBinding& binding, c10::ArrayRef<c10::IValue> values) {
  if (binding.source == Source::constant || binding.source == Source::size) return true;
  if (binding.input >= values.size()) return false;
  const auto& value = values[binding.input];
  if (binding.element) return value.isTensorList() && *binding.element < value.toListRef().size();
  return binding.source == Source::scalar ? value.isDouble() : value.isTensor();
}

// Return whether inputs of these types always fit. The length of a list is known only in a call.
bool accepts(const InputBinding& binding, c10::ArrayRef<c10::TypePtr> types) {
  if (binding.source == Source::constant || binding.source == Source::size) return true;
  if (binding.input >= types.size() || binding.element) return false;
  const auto kind =
      binding.source == Source::scalar ? c10::TypeKind::FloatType : c10::TypeKind::TensorType;
  return types[binding.input]->kind() == kind;
}

// Return the time in ticks, which is cheap to read: every call reads it four times.
uint64_t now() {
  return static_cast<uint64_t>(c10::getApproximateTime());
}

// Return whether the packed arguments still have their content, in the lines that this call checks.
bool is_content_unchanged(const PackedSet& set, const std::vector<size_t>& packed,
                          c10::ArrayRef<void*> arguments) {
  for (size_t i = 0; i < packed.size(); ++i)
    if (!set.verifier.verify_next(i, arguments[packed[i]])) return false;
  return set.mapped.verify_next();
}

// Return whether autograd makes the outputs of a call results of a node.
bool records_gradients(c10::ArrayRef<c10::IValue> values) {
  return at::GradMode::is_enabled() && std::ranges::any_of(values, [](const c10::IValue& value) {
           return value.isTensor() && value.toTensor().requires_grad();
         });
}

// Return the start address of an argument, which compiled code reads. Results are written to the
// memory of tensors that `result_tensor` returns.
void* address_of(const at::Tensor& tensor) {
  return const_cast<void*>(tensor.const_data_ptr());
}

} // namespace

Executable::Executable(CompiledCode code, std::vector<InputBinding> inputs,
                       std::vector<OutputBinding> outputs,
                       const std::vector<InPlaceResult>& in_place,
                       const std::vector<ArgumentRelease>& releases)
    : code_(std::move(code)), program_(code_.program_bytes, memory_use().code),
      inputs_(std::move(inputs)), outputs_(std::move(outputs)),
      scalars_(std::count_if(inputs_.begin(), inputs_.end(), [](const InputBinding& binding) {
        return binding.source == Source::scalar;
      })) {
  TORCH_CHECK(code_.entry, "torchmdla: an executable needs the address of its entry");
  TORCH_CHECK(code_.owner, "torchmdla: an executable needs an owner of its code");
  std::set<size_t> packed;
  for (const auto& pack : code_.packs)
    packed.insert(pack.arguments.begin(), pack.arguments.end());
  for (const size_t argument : packed)
    TORCH_CHECK(argument < inputs_.size() && (inputs_[argument].source == Source::dense ||
                                              inputs_[argument].source == Source::constant),
                "torchmdla: only parameters that lie densely in memory can be packed");
  parameters_.assign(packed.begin(), packed.end());
  if (!code_.packs.empty()) packed_ = make_packed_slot();
  for (size_t i = 0; i < outputs_.size(); ++i)
    if (const auto* tensor = std::get_if<OutputTensor>(&outputs_[i])) {
      TORCH_CHECK(
          tensor->result <= owner_of_result_.size(),
          "torchmdla: the first outputs that use the results 0, 1, … must be in that order");
      if (tensor->result == owner_of_result_.size()) owner_of_result_.push_back(i);
    }
  written_argument_.resize(owner_of_result_.size());
  for (const auto& [result, argument] : in_place) {
    TORCH_CHECK(result < written_argument_.size() && argument < inputs_.size() &&
                    inputs_[argument].source == Source::dense,
                "torchmdla: only an argument that lies densely in memory can be written");
    written_argument_[result] = argument;
  }
  releases_ = input_releases(releases);
  TORCH_CHECK(in_place.empty() || !code_.asynchronous.wait,
              "torchmdla: an asynchronous device cannot write results to arguments");
}

// Return the inputs that may be dropped: tensors of which every argument may be dropped, and whose
// state no pack compares in the next call.
std::vector<InputRelease>
Executable::input_releases(const std::vector<ArgumentRelease>& releases) const {
  std::map<size_t, size_t> kernel_of;
  for (const auto& [argument, kernel] : releases)
    kernel_of[argument] = kernel;
  std::map<size_t, std::optional<size_t>> last; // by input; nullopt: it stays
  for (size_t argument = 0; argument < inputs_.size(); ++argument) {
    const auto& binding = inputs_[argument];
    if (binding.source == Source::constant || binding.source == Source::size) continue;
    const auto kernel = kernel_of.find(argument);
    const bool stays = kernel == kernel_of.end() || binding.element ||
                       std::ranges::binary_search(parameters_, argument);
    auto& known = last.try_emplace(binding.input, 0).first->second;
    known = stays || !known ? std::nullopt : std::optional(std::max(*known, kernel->second));
  }
  std::vector<InputRelease> result;
  for (const auto& [input, kernel] : last)
    if (kernel) result.push_back({*kernel, input});
  std::ranges::sort(result, {}, &InputRelease::kernel);
  return result;
}

std::vector<c10::IValue> Executable::copy_written(c10::ArrayRef<c10::IValue> values) const {
  auto copies = values.vec();
  for (const auto& argument : written_argument_) {
    if (!argument) continue;
    const auto& [source, input, element, constant, unversioned] = inputs_[*argument];
    if (element) {
      auto tensors = copies[input].toTensorList().copy();
      tensors.set(*element, tensors.get(*element).clone());
      copies[input] = std::move(tensors);
    } else {
      copies[input] = copies[input].toTensor().clone();
    }
  }
  return copies;
}

// Wait for pending inputs that the device cannot read in its own memory: results of other devices,
// and those of which only a part or a copy is passed.
void Executable::wait_for_inputs(c10::ArrayRef<c10::IValue> values) const {
  for (const auto& binding : inputs_) {
    if (binding.source != Source::dense && binding.source != Source::contiguous) continue;
    const auto& tensor = tensor_of(binding, values);
    const auto* device = pending_device(tensor);
    if (!device) continue;
    const bool is_whole =
        tensor.storage_offset() == 0 && (binding.source == Source::dense || tensor.is_contiguous());
    if (device->wait != code_.asynchronous.wait || !is_whole) wait_for(tensor);
  }
}

// Return the status of the device after all results are in host memory.
int32_t Executable::wait_for_results(c10::ArrayRef<at::Tensor> results) const {
  int32_t status = 0;
  for (const auto& result : results) {
    auto* const data = result.mutable_data_ptr();
    if (status == 0)
      status = code_.asynchronous.wait(data);
    else
      code_.asynchronous.forget(data);
  }
  return status;
}

bool Executable::run(torch::jit::Stack& stack, size_t num_inputs, c10::ArrayRef<int64_t> symbols,
                     bool gives_up_inputs, decltype(PendingCall::recover) recover) const {
  const auto values = torch::jit::last(stack, num_inputs);
  const bool is_asynchronous = code_.asynchronous.wait;
  if (is_asynchronous) wait_for_inputs(values);
  c10::SmallVector<void*, 512> buffers(buffers_before_arguments);
  c10::SmallVector<double, 8> scalars(scalars_, 0.0);
  c10::SmallVector<at::Tensor, 4> copies;
  bind_inputs(values, symbols, buffers, scalars.data(), copies);

  const auto [set, check_time] =
      packed_ ? packed(values, c10::ArrayRef<void*>(buffers).slice(buffers_before_arguments))
              : Packed();
  const auto start = check_time ? now() : 0;
  if (set && set->fault) {
    if (set->fault->empty()) return false;
    throw DeviceFault(*set->fault);
  }
  const auto workspace = code_.workspace ? code_.workspace(symbols.data()) : code_.workspace_bytes;
  buffers[0] = code_.context ? code_.context : thread_workspace(workspace);
  buffers[1] = set ? const_cast<void**>(set->addresses.data()) : nullptr;
  buffers[2] = symbols.empty() ? nullptr : const_cast<int64_t*>(symbols.data());

  c10::SmallVector<at::Tensor, 16> results;
  for (size_t result = 0; result < owner_of_result_.size(); ++result) {
    results.push_back(result_tensor(result, values, symbols));
    buffers.push_back(results.back().mutable_data_ptr());
  }
  const bool leaves_pending = is_asynchronous && recover;
  if (leaves_pending) {
    const auto call = std::make_shared<const PendingCall>(code_.asynchronous, std::move(recover));
    for (size_t result = 0; result < results.size(); ++result)
      make_pending(results[result], call, owner_of_result_[result]);
  }
  std::optional<InputReleases> releases;
  if (gives_up_inputs) releases.emplace(releases_, &*stack.end() - num_inputs);
  auto status = run_entry(buffers.data(), symbols);
  if (is_asynchronous && !leaves_pending && status == 0) status = wait_for_results(results);
  if (status != 0) {
    const std::string fault = code_.fault ? code_.fault() : "";
    if (!fault.empty()) throw DeviceFault(fault);
    return false;
  }
  if (check_time) set->verifier.adapt_share(check_time, now() - start);
  push_outputs(stack, num_inputs, symbols, results);
  return true;
}

void Executable::pack_constants() const {
  const bool are_constants = std::ranges::all_of(
      parameters_, [&](size_t argument) { return inputs_[argument].source == Source::constant; });
  if (packed_ && are_constants && !packed_->load())
    store_packed(*packed_, [&] { return pack({}); });
}

void Executable::prefetch() const {
  if (!packed_) return;
  const auto set = packed_->load();
  for (size_t i = 0; set && i < set->parameters.size(); ++i) {
    const auto& parameter = set->parameters[i];
    parameter.prefetch();
    set->verifier.prefetch(i, parameter.data());
  }
}

void Executable::page_out_parameters() const {
  if (const auto set = packed_ ? packed_->load() : nullptr) set->mapped.page_out();
}

int64_t Executable::packed_bytes() const {
  const auto set = packed_ ? packed_->load() : nullptr;
  return set ? set->bytes() : 0;
}

int64_t Executable::drop_packed() const {
  auto set = packed_->load();
  if (!set) return 0;
  const auto bytes = set->bytes();
  const auto dropped = packed_->drop(set);
  set.reset();
  return dropped.expired() ? 0 : bytes;
}

int32_t Executable::run_entry(void* const* buffers, c10::ArrayRef<int64_t> symbols) const {
  if (!code_.times || !kernel_observation().any()) return code_.entry(buffers);
  const KernelClock clock(*code_.times, symbols);
  return code_.entry(buffers);
}

Executable::Packed Executable::packed(c10::ArrayRef<c10::IValue> values,
                                      c10::ArrayRef<void*> arguments) const {
  auto set = packed_->load();
  if (set && is_current(*set, values, arguments)) {
    const bool is_timed = set->verifier.is_adaptive();
    const auto start = is_timed ? now() : 0;
    if (is_content_unchanged(*set, parameters_, arguments)) {
      const auto check_time = is_timed ? std::max<uint64_t>(now() - start, 1) : 0;
      return {std::move(set), check_time};
    }
  }
  const WithoutGil without_gil;
  return {store_packed(*packed_, [&] { return pack(values); })};
}

bool Executable::is_current(const PackedSet& set, c10::ArrayRef<c10::IValue> values,
                            c10::ArrayRef<void*> arguments) const {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const size_t argument = parameters_[i];
    if (!set.parameters[i].describes(tensor_of(inputs_[argument], values), arguments[argument]))
      return false;
  }
  return true;
}

std::shared_ptr<const PackedSet> Executable::pack(c10::ArrayRef<c10::IValue> values) const {
  RECORD_USER_SCOPE("mdla::pack");
  std::vector<at::Tensor> parameters;
  std::vector<bool> unversioned;
  for (const size_t argument : parameters_) {
    parameters.push_back(tensor_of(inputs_[argument], values));
    unversioned.push_back(inputs_[argument].unversioned);
  }
  const auto set = std::make_shared<PackedSet>(states_of(parameters, unversioned));
  for (const auto& pack : code_.packs) {
    std::vector<ParameterState> parameters;
    for (const size_t argument : pack.arguments) {
      const auto match = std::lower_bound(parameters_.begin(), parameters_.end(), argument);
      parameters.push_back(set->parameters[match - parameters_.begin()]);
    }
    try {
      set->buffers.push_back(packed_buffer(pack, std::move(parameters), code_.workspace_bytes));
    } catch (const PackingFailed& failure) {
      const std::string fault = code_.fault ? code_.fault() : "";
      if (failure.has_python_error) throw DeviceFault(fault, true);
      set->fault = fault; // kept, like a buffer: the same parameters would fail again
      return set;
    }
    set->addresses.push_back(set->buffers.back()->memory.get());
  }
  return set;
}

void Executable::bind_inputs(c10::ArrayRef<c10::IValue> values, c10::ArrayRef<int64_t> symbols,
                             c10::SmallVectorImpl<void*>& buffers, double* next_scalar,
                             c10::SmallVectorImpl<at::Tensor>& copies) const {
  for (const auto& binding : inputs_) {
    switch (binding.source) {
    case Source::dense:
      buffers.push_back(address_of(tensor_of(binding, values)));
      break;
    case Source::contiguous:
      copies.push_back(tensor_of(binding, values).contiguous());
      buffers.push_back(address_of(copies.back()));
      break;
    case Source::scalar:
      *next_scalar = values[binding.input].toDouble();
      buffers.push_back(next_scalar++);
      break;
    case Source::size:
      buffers.push_back(const_cast<int64_t*>(&symbols[binding.input]));
      break;
    case Source::constant:
      buffers.push_back(address_of(binding.constant));
      break;
    }
  }
}

// Return the argument that a result is written to, or a new tensor.
at::Tensor Executable::result_tensor(size_t result, c10::ArrayRef<c10::IValue> values,
                                     c10::ArrayRef<int64_t> symbols) const {
  const auto& output = std::get<OutputTensor>(outputs_[owner_of_result_[result]]);
  if (const auto argument = written_argument_[result]; argument && symbols.empty()) {
    const auto& tensor = tensor_of(inputs_[*argument], values);
    if (tensor.scalar_type() == output.dtype && tensor.sizes() == output.sizes &&
        tensor.strides() == output.strides && !records_gradients(values))
      return tensor;
  }
  auto tensor = allocate(output, symbols);
  use_huge_pages(tensor.mutable_data_ptr(), tensor.nbytes());
  return tensor;
}

void Executable::push_outputs(torch::jit::Stack& stack, size_t num_inputs,
                              c10::ArrayRef<int64_t> symbols,
                              c10::ArrayRef<at::Tensor> results) const {
  c10::SmallVector<c10::IValue, 16> values;
  for (const auto& output : outputs_) {
    if (const auto* tensor = std::get_if<OutputTensor>(&output))
      values.emplace_back(results[tensor->result]);
    else if (const auto* list = std::get_if<OutputList>(&output))
      values.emplace_back(c10::List<int64_t>(at(list->numbers, list->varying, symbols)));
    else if (const auto* number = std::get_if<Polynomial>(&output))
      values.emplace_back(number->at(symbols));
    else
      values.push_back(std::get<c10::IValue>(output));
  }
  torch::jit::drop(stack, num_inputs);
  stack.insert(stack.end(), std::make_move_iterator(values.begin()),
               std::make_move_iterator(values.end()));
}

bool Executable::accepts(c10::ArrayRef<c10::IValue> values) const {
  return std::ranges::all_of(
      inputs_, [&](const auto& binding) { return torchmdla::accepts(binding, values); });
}

bool Executable::accepts(c10::ArrayRef<c10::TypePtr> types) const {
  return std::ranges::all_of(
      inputs_, [&](const auto& binding) { return torchmdla::accepts(binding, types); });
}

} // namespace torchmdla
