#include "packed.h"

#include "runtime.h"

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <mutex>
#include <unordered_map>

namespace torchmdla {

namespace {

constexpr int64_t no_version = -1;

// Without the detour that Tensor::_version() takes to libtorch's autograd: calls ask for hundreds.
int64_t version_of(const at::Tensor& parameter) {
  const auto& counter = parameter.unsafeGetTensorImpl()->version_counter();
  return counter.enabled() ? counter.current_version() : no_version;
}

std::shared_ptr<const std::byte[]> copy_of(const at::Tensor& parameter) {
  auto copy = std::make_shared<std::byte[]>(parameter.nbytes());
  std::memcpy(copy.get(), parameter.const_data_ptr(), parameter.nbytes());
  return copy;
}

// What some executable still uses of one recipe's buffers.
struct Known {
  std::mutex mutex;
  std::list<std::weak_ptr<const PackedBuffer>> buffers;
};

struct Registry {
  std::mutex mutex;
  std::unordered_map<std::string, std::shared_ptr<Known>> recipes;
};

Registry& registry() {
  static Registry instance;
  return instance;
}

std::shared_ptr<Known> known_of(const std::string& recipe) {
  std::lock_guard<std::mutex> guard(registry().mutex);
  auto& known = registry().recipes[recipe];
  if (!known) known = std::make_shared<Known>();
  return known;
}

std::shared_ptr<const PackedBuffer> make(const Pack& pack, std::vector<ParameterState> parameters,
                                         int64_t workspace_bytes) {
  auto buffer = std::make_shared<PackedBuffer>();
  const auto memory = aligned_memory(pack.bytes);
  // What is released must be something, even if a pack ends where it should not.
  if (pack.release) std::memset(memory.get(), 0, pack.bytes);
  // The states are older than what is packed: a write during packing makes the buffer stale.
  c10::SmallVector<void*, 8> buffers{thread_workspace(workspace_bytes), memory.get()};
  for (const auto& parameter : parameters)
    buffers.push_back(const_cast<void*>(parameter.data()));
  const auto status = pack.function(buffers.data());
  if (status != 0) throw PackingFailed(status < 0);
  buffer->memory = memory;
  if (pack.release)
    buffer->memory = {memory.get(),
                      [memory, release = pack.release](void*) { release(memory.get()); }};
  buffer->parameters = std::move(parameters);
  return buffer;
}

} // namespace

ParameterState::ParameterState(const at::Tensor& parameter, bool unversioned)
    : tensor_(parameter.getIntrusivePtr()), storage_(parameter.storage().getWeakStorageImpl()),
      data_(parameter.const_data_ptr()), version_(version_of(parameter)),
      bytes_(parameter.nbytes()) {
  if (unversioned)
    copy_ = copy_of(parameter);
  else
    samples_ = samples_of(data_, bytes_);
}

ParameterState::Samples ParameterState::samples_of(const void* data, size_t bytes) {
  Samples samples{};
  const size_t size = std::min(bytes, sizeof samples[0]);
  const size_t step = (bytes - size) / (samples.size() - 1);
  for (size_t i = 0; i < samples.size() && size > 0; ++i)
    std::memcpy(&samples[i], static_cast<const std::byte*>(data) + i * step, size);
  return samples;
}

bool ParameterState::describes(const at::Tensor& parameter, const void* data) const {
  if (copy_) return bytes_ == parameter.nbytes() && std::memcmp(copy_.get(), data, bytes_) == 0;
  return tensor_._unsafe_get_target() == parameter.unsafeGetTensorImpl() &&
         storage_._unsafe_get_target() == parameter.storage().unsafeGetStorageImpl() &&
         data_ == data && version_ != no_version && version_ == version_of(parameter) &&
         samples_ == samples_of(data, bytes_);
}

bool ParameterState::operator==(const ParameterState& other) const {
  if (copy_ && other.copy_)
    return bytes_ == other.bytes_ && std::memcmp(copy_.get(), other.copy_.get(), bytes_) == 0;
  return !copy_ && !other.copy_ && tensor_ == other.tensor_ && storage_ == other.storage_ &&
         data_ == other.data_ && version_ != no_version && version_ == other.version_ &&
         samples_ == other.samples_;
}

std::shared_ptr<const PackedBuffer>
packed_buffer(const Pack& pack, std::vector<ParameterState> parameters, int64_t workspace_bytes) {
  const auto known = known_of(pack.recipe);
  // Held while packing: two executables that want the same buffer must not make it twice.
  std::lock_guard<std::mutex> guard(known->mutex);
  auto& candidates = known->buffers;
  candidates.remove_if([](const auto& candidate) { return candidate.expired(); });
  for (const auto& candidate : candidates)
    if (auto buffer = candidate.lock(); buffer && buffer->parameters == parameters) return buffer;
  auto made = make(pack, std::move(parameters), workspace_bytes);
  candidates.emplace_back(made);
  return made;
}

} // namespace torchmdla
