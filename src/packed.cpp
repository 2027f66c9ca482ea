#include "packed.h"

#include "runtime.h"

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <list>
#include <mutex>
#include <unordered_map>

namespace torchmdla {

namespace {

constexpr int64_t unversioned = -1;

int64_t version_of(const at::Tensor& parameter) {
  return parameter.is_inference() ? unversioned : parameter._version();
}

// Buffers that some executable still uses, by recipe.
struct Registry {
  std::mutex mutex;
  std::unordered_map<std::string, std::list<std::weak_ptr<const PackedBuffer>>> buffers;
};

Registry& registry() {
  static Registry instance;
  return instance;
}

bool describe(const std::vector<ParameterState>& states, c10::ArrayRef<at::Tensor> parameters) {
  return std::equal(
      states.begin(), states.end(), parameters.begin(), parameters.end(),
      [](const auto& state, const auto& parameter) { return state.describes(parameter); });
}

std::shared_ptr<const PackedBuffer> make(const Pack& pack, c10::ArrayRef<at::Tensor> parameters,
                                         int64_t workspace_bytes) {
  auto buffer = std::make_shared<PackedBuffer>();
  buffer->memory = aligned_memory(pack.bytes);
  c10::SmallVector<void*, 8> buffers{thread_workspace(workspace_bytes), buffer->memory.get()};
  for (const auto& parameter : parameters) {
    // The state first: a write during packing then makes the buffer stale.
    buffer->parameters.emplace_back(parameter);
    buffers.push_back(const_cast<void*>(parameter.const_data_ptr()));
  }
  TORCH_CHECK(pack.function(buffers.data()) == 0, "torchmdla: packing parameters failed");
  return buffer;
}

} // namespace

ParameterState::ParameterState(const at::Tensor& parameter)
    : tensor_(parameter.getIntrusivePtr()), data_(parameter.const_data_ptr()),
      version_(version_of(parameter)) {}

bool ParameterState::describes(const at::Tensor& parameter) const {
  return tensor_._unsafe_get_target() == parameter.unsafeGetTensorImpl() && !tensor_.expired() &&
         data_ == parameter.const_data_ptr() && version_ != unversioned &&
         version_ == version_of(parameter);
}

std::shared_ptr<const PackedBuffer>
packed_buffer(const Pack& pack, c10::ArrayRef<at::Tensor> parameters, int64_t workspace_bytes) {
  auto& known = registry();
  // Held while packing: two executables that want the same buffer must not make it twice.
  std::lock_guard<std::mutex> guard(known.mutex);
  auto& candidates = known.buffers[pack.recipe];
  candidates.remove_if([](const auto& candidate) { return candidate.expired(); });
  for (const auto& candidate : candidates)
    if (auto buffer = candidate.lock(); buffer && describe(buffer->parameters, parameters))
      return buffer;
  auto made = make(pack, parameters, workspace_bytes);
  candidates.emplace_back(made);
  return made;
}

} // namespace torchmdla
