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

void prefetch_lines(const void* start, size_t bytes) {
  constexpr size_t line = 64;
  for (size_t offset = 0; offset < bytes; offset += line)
    __builtin_prefetch(static_cast<const std::byte*>(start) + offset);
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

ParameterState::ParameterState(const at::Tensor& parameter)
    : ParameterState(parameter, /*copy=*/nullptr) {
  samples_ = samples_of(data_, bytes_);
}

ParameterState::ParameterState(const at::Tensor& parameter, std::shared_ptr<const std::byte[]> copy)
    : tensor_(parameter.getIntrusivePtr()), storage_(parameter.storage().getWeakStorageImpl()),
      data_(parameter.const_data_ptr()), version_(version_of(parameter)), copy_(std::move(copy)),
      bytes_(parameter.nbytes()) {}

size_t ParameterState::step_of_samples(size_t bytes) {
  constexpr auto count = std::tuple_size_v<Samples>;
  return (bytes - std::min(bytes, sizeof(Samples::value_type))) / (count - 1);
}

ParameterState::Samples ParameterState::samples_of(const void* data, size_t bytes) {
  Samples samples{};
  const size_t size = std::min(bytes, sizeof samples[0]), step = step_of_samples(bytes);
  for (size_t i = 0; i < samples.size() && size > 0; ++i)
    std::memcpy(&samples[i], static_cast<const std::byte*>(data) + i * step, size);
  return samples;
}

void ParameterState::prefetch() const {
  prefetch_lines(tensor_._unsafe_get_target(), sizeof(c10::TensorImpl));
  prefetch_lines(storage_._unsafe_get_target(), sizeof(c10::StorageImpl));
  if (copy_) {
    prefetch_lines(data_, bytes_);
    prefetch_lines(copy_.get(), bytes_);
  } else {
    for (size_t i = 0, step = step_of_samples(bytes_); i < samples_.size(); ++i)
      __builtin_prefetch(static_cast<const std::byte*>(data_) + i * step);
  }
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

std::vector<ParameterState> states_of(c10::ArrayRef<at::Tensor> parameters,
                                      const std::vector<bool>& unversioned) {
  size_t bytes = 0;
  for (size_t i = 0; i < parameters.size(); ++i)
    if (unversioned[i]) bytes += parameters[i].nbytes();
  // One after the other, since they are read one after the other.
  const auto copies = std::make_shared<std::byte[]>(bytes);
  std::vector<ParameterState> states;
  states.reserve(parameters.size());
  auto* next = copies.get();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& parameter = parameters[i];
    if (!unversioned[i]) {
      states.emplace_back(parameter);
      continue;
    }
    std::memcpy(next, parameter.const_data_ptr(), parameter.nbytes());
    states.emplace_back(parameter, std::shared_ptr<const std::byte[]>(copies, next));
    next += parameter.nbytes();
  }
  return states;
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
