#include "packed.h"

#include "device_calls.h"
#include "memory.h"

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <list>
#include <mutex>
#include <unordered_map>

namespace torchmdla {

namespace {

constexpr int64_t no_version = -1;

// Return the parameter's version, which calls need hundreds of times. Tensor::_version() is slower,
// because it calls libtorch's autograd.
int64_t version_of(const at::Tensor& parameter) {
  const auto& counter = parameter.unsafeGetTensorImpl()->version_counter();
  return counter.enabled() ? counter.current_version() : no_version;
}

void prefetch_lines(const void* start, size_t bytes) {
  constexpr size_t line = 64;
  for (size_t offset = 0; offset < bytes; offset += line)
    __builtin_prefetch(static_cast<const std::byte*>(start) + offset);
}

// Buffers of one recipe that executables still use.
struct Bucket {
  ForkRobustMutex mutex;
  std::list<std::weak_ptr<const PackedBuffer>> buffers; // changed only in unforked sections
};

struct Registry {
  std::mutex mutex;
  std::unordered_map<std::string, std::shared_ptr<Bucket>> recipes;
  std::vector<std::weak_ptr<PackedSlot>> slots;
};

Registry& registry() {
  static Registry instance;
  return instance;
}

std::shared_ptr<Bucket> bucket_for(const std::string& recipe) {
  const ForkSafeLock guard(registry().mutex);
  auto& bucket = registry().recipes[recipe];
  if (!bucket) bucket = std::make_shared<Bucket>();
  return bucket;
}

// Number of calls of `refresh_packs`.
std::atomic<uint64_t> refreshes{0};

std::vector<std::shared_ptr<PackedSlot>> live_slots() {
  const ForkSafeLock guard(registry().mutex);
  std::vector<std::shared_ptr<PackedSlot>> live;
  std::erase_if(registry().slots, [&](const auto& slot) {
    if (auto live_slot = slot.lock()) return live.push_back(std::move(live_slot)), false;
    return true;
  });
  return live;
}

// Return the contents that calls verify by lines. Of a mapped parameter that is the start alone, so
// that the rest need not be resident.
std::vector<Fingerprint> contents_of(const std::vector<ParameterState>& parameters) {
  std::vector<Fingerprint> contents;
  for (const auto& parameter : parameters)
    contents.push_back(parameter.is_mapped() ? Fingerprint(parameter.data(), bytes_of_lines())
                                             : parameter.content());
  return contents;
}

// Drop the packs of the parameters for which `predicate` is true. No lock is held, because freed
// objects may belong to Python.
void drop_sets(const ParameterPredicate& predicate) {
  for (const auto& slot : live_slots()) {
    auto set = slot->load();
    if (!set || !std::ranges::any_of(set->parameters, predicate)) continue;
    for (const auto& buffer : set->buffers)
      if (std::ranges::any_of(buffer->parameters, predicate)) buffer->is_dropped = true;
    slot->drop(set);
  }
}

bool has_contents_of(const std::vector<ParameterState>& parameters,
                     const PrebuiltBuffer& prebuilt) {
  return std::ranges::equal(parameters, prebuilt.parameters, {}, &ParameterState::content_hash);
}

std::shared_ptr<const PackedBuffer>
make_buffer(const Pack& pack, std::vector<ParameterState> parameters, int64_t workspace_bytes) {
  auto buffer = std::make_shared<PackedBuffer>();
  if (pack.prebuilt && has_contents_of(parameters, *pack.prebuilt)) {
    buffer->memory = {std::const_pointer_cast<void>(pack.prebuilt->owner),
                      const_cast<void*>(pack.prebuilt->data)};
    buffer->parameters = std::move(parameters);
    return buffer;
  }
  const auto memory = aligned_memory(pack.bytes, memory_use().packed);
  // The memory is zeroed, so that `release` reads defined values even if a pack stops early.
  if (pack.release) std::memset(memory.get(), 0, pack.bytes);
  // The states are older than the packed data, so a write during packing makes the buffer stale.
  auto* const first = pack.context ? pack.context : thread_workspace(workspace_bytes);
  c10::SmallVector<void*, 8> buffers{first, memory.get()};
  for (const auto& parameter : parameters)
    buffers.push_back(const_cast<void*>(parameter.data()));
  const auto status = pack.function(buffers.data());
  if (status != 0) throw PackingFailed(status < 0);
  buffer->memory = memory;
  buffer->bytes = pack.bytes;
  if (pack.release)
    buffer->memory = {memory.get(),
                      [memory, release = pack.release](void*) { release(memory.get()); }};
  buffer->parameters = std::move(parameters);
  return buffer;
}

} // namespace

ParameterState::ParameterState(const at::Tensor& parameter)
    : ParameterState(parameter, /*copy=*/nullptr) {}

ParameterState::ParameterState(const at::Tensor& parameter, std::shared_ptr<const std::byte[]> copy)
    : tensor_(parameter.getIntrusivePtr()), storage_(parameter.storage().getWeakStorageImpl()),
      data_(parameter.const_data_ptr()), version_(version_of(parameter)), copy_(std::move(copy)),
      bytes_(parameter.nbytes()) {}

ParameterState ParameterState::with_content(const at::Tensor& parameter) {
  ParameterState state(parameter);
  state.content_ = Fingerprint(state.data_, state.bytes_);
  return state;
}

uint64_t ParameterState::content_hash() const {
  return copy_ ? torchmdla::content_hash(copy_.get(), bytes_) : content_.content_hash();
}

void ParameterState::prefetch() const {
  prefetch_lines(tensor_._unsafe_get_target(), sizeof(c10::TensorImpl));
  prefetch_lines(storage_._unsafe_get_target(), sizeof(c10::StorageImpl));
  if (!copy_) return;
  prefetch_lines(data_, bytes_);
  prefetch_lines(copy_.get(), bytes_);
}

bool ParameterState::describes(const at::Tensor& parameter, const void* data) const {
  if (copy_) return bytes_ == parameter.nbytes() && std::memcmp(copy_.get(), data, bytes_) == 0;
  return tensor_._unsafe_get_target() == parameter.unsafeGetTensorImpl() &&
         storage_._unsafe_get_target() == parameter.storage().unsafeGetStorageImpl() &&
         data_ == data && version_ != no_version && version_ == version_of(parameter);
}

bool ParameterState::operator==(const ParameterState& other) const {
  if (copy_ && other.copy_)
    return bytes_ == other.bytes_ && std::memcmp(copy_.get(), other.copy_.get(), bytes_) == 0;
  return !copy_ && !other.copy_ && tensor_ == other.tensor_ && storage_ == other.storage_ &&
         data_ == other.data_ && version_ != no_version && version_ == other.version_ &&
         content_ == other.content_;
}

std::vector<ParameterState> states_of(c10::ArrayRef<at::Tensor> parameters,
                                      const std::vector<bool>& unversioned) {
  size_t bytes = 0;
  for (size_t i = 0; i < parameters.size(); ++i)
    if (unversioned[i]) bytes += parameters[i].nbytes();
  // The copies are adjacent, since they are read one after the other.
  const auto copies = std::make_shared<std::byte[]>(bytes);
  std::vector<ParameterState> states;
  states.reserve(parameters.size());
  auto* next = copies.get();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& parameter = parameters[i];
    if (!unversioned[i]) {
      states.push_back(ParameterState::with_content(parameter));
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
  const auto bucket = bucket_for(pack.recipe);
  // The lock is held while packing, so that two executables do not make the same buffer twice.
  const std::lock_guard<ForkRobustMutex> guard(bucket->mutex);
  auto& candidates = bucket->buffers;
  {
    const ForkGuard section;
    candidates.remove_if([](const auto& candidate) { return candidate.expired(); });
  }
  for (const auto& candidate : candidates)
    if (auto buffer = candidate.lock();
        buffer && !buffer->is_dropped && buffer->parameters == parameters)
      return buffer;
  auto buffer = make_buffer(pack, std::move(parameters), workspace_bytes);
  const ForkGuard section;
  candidates.emplace_back(buffer);
  return buffer;
}

PackedSet::PackedSet(std::vector<ParameterState> states)
    : parameters(std::move(states)), verifier(contents_of(parameters)) {
  for (const auto& parameter : parameters)
    if (parameter.is_mapped()) mapped.add(parameter.content(), parameter.data(), parameter.bytes());
}

int64_t PackedSet::bytes() const {
  int64_t sum = 0;
  for (const auto& buffer : buffers)
    sum += buffer->bytes;
  return sum;
}

std::shared_ptr<PackedSlot> make_packed_slot() {
  auto slot = std::make_shared<PackedSlot>();
  const ForkSafeLock guard(registry().mutex);
  registry().slots.push_back(slot);
  return slot;
}

std::shared_ptr<const PackedSet>
store_packed(PackedSlot& slot, const std::function<std::shared_ptr<const PackedSet>()>& make) {
  drop_dead_packs();
  const auto before = refreshes.load();
  auto set = make();
  slot.store(set);
  ++memory_use().allocation_epoch;
  // `refresh_packs` counts first and looks into the slots afterwards.
  if (refreshes.load() != before) slot.store(nullptr);
  return set;
}

void refresh_packs(const ParameterPredicate& predicate) {
  ++refreshes;
  drop_sets(predicate);
}

void drop_dead_packs() {
  drop_sets([](const ParameterState& parameter) { return parameter.is_dead(); });
  const ForkSafeLock guard(registry().mutex);
  std::erase_if(registry().recipes, [](const auto& recipe) {
    const auto& [name, bucket] = recipe;
    return bucket.use_count() == 1 && // no thread looks for a buffer there
           std::ranges::all_of(bucket->buffers,
                               [](const auto& buffer) { return buffer.expired(); });
  });
}

} // namespace torchmdla
