#include "call.h"

#include "base/byte_reader.h"
#include "runtime/device_calls.h"

#include <algorithm>

namespace torchmdla::native {

namespace {

constexpr std::ptrdiff_t in_place = -1;
constexpr size_t alignment = 64;

// Return whether code can use the tensor in place.
bool is_usable_in_place(const TensorView& tensor, std::span<const int64_t> strides) {
  const auto width = std::min<size_t>(element_bytes(tensor.dtype), alignof(std::max_align_t));
  return reinterpret_cast<uintptr_t>(tensor.data) % width == 0 && has_strides(tensor, strides);
}

size_t bytes_of(const TensorView& tensor) {
  return element_count(tensor.sizes) * element_bytes(tensor.dtype);
}

Numbers strides_of(const TensorView& tensor) {
  return tensor.strides.empty() ? contiguous_strides(tensor.sizes)
                                : Numbers(tensor.strides.begin(), tensor.strides.end());
}

} // namespace

Call::Call(const Specialisation& specialisation, std::span<const int64_t> symbols,
           std::span<const TensorView> inputs, std::span<const TensorView> outputs)
    : specialisation_(specialisation), symbols_(symbols), inputs_(inputs), outputs_(outputs),
      copied_inputs_(inputs.size(), in_place),
      copied_results_(specialisation.owners.size(), in_place) {
  plan_inputs();
  plan_outputs();
}

int32_t Call::run(int32_t (*entry)(void* const* buffers), int64_t workspace_bytes,
                  std::span<const void* const> packed, const AddressOfWeight& weight) {
  const auto workspace = reserve(static_cast<size_t>(workspace_bytes));
  auto* const memory = static_cast<std::byte*>(thread_workspace(static_cast<int64_t>(reserved_)));
  copy_in(memory);
  auto addresses = buffers(memory, packed, weight);
  addresses[0] = memory + workspace;
  const auto status = entry(addresses.data());
  if (status == 0) copy_out(memory);
  return status;
}

size_t Call::reserve(size_t bytes) {
  const auto offset = reserved_;
  reserved_ += (bytes + alignment - 1) / alignment * alignment;
  return offset;
}

void Call::plan_inputs() {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    auto strides = dense_strides(inputs_[i].sizes, specialisation_.inputs[i].permutation);
    if (is_usable_in_place(inputs_[i], strides)) continue;
    const auto offset = reserve(bytes_of(inputs_[i]));
    copied_inputs_[i] = static_cast<std::ptrdiff_t>(offset);
    before_.push_back({&inputs_[i], std::move(strides), offset});
  }
}

void Call::plan_outputs() {
  for (size_t i = 0; i < outputs_.size(); ++i) {
    const auto& layout = specialisation_.outputs[i];
    const auto owner = specialisation_.owners[layout.result];
    const auto sharing =
        std::ranges::count(specialisation_.outputs, layout.result, &OutputLayout::result);
    auto strides = layout.strides_at(symbols_);
    if (sharing == 1 && is_usable_in_place(outputs_[i], strides)) continue;
    // The strides come from the file, so check that they stay in the buffer.
    const auto bytes = bytes_of(outputs_[owner]);
    if (!is_within(outputs_[i].sizes, strides, bytes / element_bytes(outputs_[i].dtype)))
      throw BadBytes("a model's file: an output is outside of its memory");
    auto& offset = copied_results_[layout.result];
    if (offset == in_place) offset = static_cast<std::ptrdiff_t>(reserve(bytes));
    after_.push_back({&outputs_[i], std::move(strides), static_cast<size_t>(offset)});
  }
}

std::vector<void*> Call::buffers(std::byte* memory, std::span<const void* const> packed,
                                 const AddressOfWeight& weight) {
  std::vector<void*> addresses{nullptr, const_cast<void**>(packed.data()),
                               const_cast<int64_t*>(symbols_.data())};
  for (const auto& [source, index] : specialisation_.arguments)
    switch (source) {
    case Argument::Source::input:
      addresses.push_back(copied_inputs_[index] == in_place ? inputs_[index].data
                                                            : memory + copied_inputs_[index]);
      break;
    case Argument::Source::weight:
      addresses.push_back(const_cast<void*>(weight(index)));
      break;
    case Argument::Source::size:
      addresses.push_back(const_cast<int64_t*>(&symbols_[index]));
      break;
    case Argument::Source::unused:
      addresses.push_back(nullptr);
      break;
    }
  for (size_t i = 0; i < copied_results_.size(); ++i)
    addresses.push_back(copied_results_[i] == in_place ? outputs_[specialisation_.owners[i]].data
                                                       : memory + copied_results_[i]);
  return addresses;
}

void Call::copy_in(std::byte* memory) const {
  for (const auto& [tensor, strides, offset] : before_)
    copy_elements(memory + offset, strides, tensor->data, strides_of(*tensor), tensor->sizes,
                  element_bytes(tensor->dtype));
}

void Call::copy_out(std::byte* memory) const {
  for (const auto& [tensor, strides, offset] : after_)
    copy_elements(tensor->data, strides_of(*tensor), memory + offset, strides, tensor->sizes,
                  element_bytes(tensor->dtype));
}

} // namespace torchmdla::native
