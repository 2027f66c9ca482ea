// Buffers made from parameters once for every version of these: packed weights, folded statistics.
#pragma once

#include "fingerprint.h"
#include "support/forks.h"
#include "watch.h"

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace torchmdla {

// A compiled function; the ABI stands in docs/architecture.md.
using Entry = int32_t (*)(void* const* buffers);

// What a pack made elsewhere of parameters with these contents (`content_hash`).
struct ReadyBuffer {
  const void* data;
  std::vector<uint64_t> parameters;
  std::shared_ptr<const void> owner; // of the data
};

// How a packed buffer is made: from the executable's arguments `arguments`, by `function`. Buffers
// of equal recipes and parameters are the same.
struct Pack {
  Entry function;
  std::string recipe;
  std::vector<size_t> arguments;
  int64_t bytes;
  void (*release)(void* buffer) = nullptr; // called before the buffer's memory is freed, if any
  std::shared_ptr<const ReadyBuffer> ready = nullptr; // instead, for parameters with its contents
};

// A pack reported an error. `held`: an exception of Python's waits to be raised.
struct PackingFailed : std::runtime_error {
  explicit PackingFailed(bool held)
      : std::runtime_error("torchmdla: packing parameters failed"), held(held) {}
  const bool held;
};

// A parameter as it was when something was made of it: its identity, version and, since writes
// through `.data` give no other version, its content, as a fingerprint, or, of one that is
// unversioned (PyTorch itself changes its content without giving it another version), a copy.
class ParameterState {
public:
  // Without its content.
  explicit ParameterState(const at::Tensor& parameter);

  // Of an unversioned parameter, with a copy of its content.
  ParameterState(const at::Tensor& parameter, std::shared_ptr<const std::byte[]> copy);

  // Of a versioned one, with a fingerprint of its content.
  static ParameterState with_content(const at::Tensor& parameter);

  // Fetches all that `describes` will read, without waiting for any of it: a call finds it far from
  // the caches, in thousands of places.
  void prefetch() const;

  // Whether `parameter`, whose data is at `data`, is the same version of the same tensor, or has
  // the same content if it is unversioned. Never true for inference tensors that are not
  // unversioned parameters: these have no version.
  bool describes(const at::Tensor& parameter, const void* data) const;

  // Whether both describe the same content.
  bool operator==(const ParameterState& other) const;

  // Whether there is no such parameter any more.
  bool is_dead() const { return tensor_.expired() || storage_.expired(); }

  // Where the parameter's memory is, to be compared only.
  const c10::StorageImpl* storage() const { return storage_._unsafe_get_target(); }

  // The content that is described, as long as the tensor has it.
  const void* data() const { return copy_ ? copy_.get() : data_; }

  // Empty where that is a copy.
  const Fingerprint& content() const { return content_; }

  uint64_t content_hash() const;

private:
  // Weak references: no other tensor or storage gets the address while they are held.
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor_;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage_;
  const void* data_;
  int64_t version_;
  Fingerprint content_;
  std::shared_ptr<const std::byte[]> copy_; // of an unversioned parameter
  size_t bytes_;
};

// The states of parameters, some of them unversioned.
std::vector<ParameterState> states_of(c10::ArrayRef<at::Tensor> parameters,
                                      const std::vector<bool>& unversioned);

struct PackedBuffer {
  std::vector<ParameterState> parameters;
  std::shared_ptr<void> memory;
  int64_t bytes = 0; // of memory_use().packed; none of a buffer that is mapped
  mutable std::atomic<bool> dropped{false}; // nobody is given it any more
};

// The buffer of `pack` for these parameters, shared with every executable that has it already.
// Throws PackingFailed. A pack may be a function of Python's, so the GIL must not be held: another
// thread waits for it while it packs.
std::shared_ptr<const PackedBuffer>
packed_buffer(const Pack& pack, std::vector<ParameterState> parameters, int64_t workspace_bytes);

// The packed buffers of an executable for one state of its parameters.
struct PackedSet {
  explicit PackedSet(std::vector<ParameterState> parameters);

  // Of memory_use().packed, those included that others have, too.
  int64_t bytes() const;

  std::vector<ParameterState> parameters;
  std::vector<std::shared_ptr<const PackedBuffer>> buffers;
  std::vector<void*> addresses;
  // Where packing failed, so that there are no buffers: the device's fault, or none if the
  // parameters are not what the code relies on.
  std::optional<std::string> fault;
  mutable Watch watch; // over the parameters' contents
};

// Where an executable keeps its set. It is replaced when a parameter has changed, and may be gone
// at any time: a call keeps the set that it started with.
using PackedSlot = Published<const PackedSet>;

// An empty one. Those that live are known to the functions below.
std::shared_ptr<PackedSlot> make_packed_slot();

// What `make` makes, kept in `slot`, unless packs were refreshed meanwhile.
std::shared_ptr<const PackedSet>
keep_packed(PackedSlot& slot, const std::function<std::shared_ptr<const PackedSet>()>& make);

using Chosen = std::function<bool(const ParameterState&)>;

// Drops all that was packed of one of the chosen parameters, so that the next call packs them anew.
// The GIL must not be held.
void refresh_packs(const Chosen& chosen);

// Drops what was packed of parameters that are no more. PyTorch keeps the groups of traced modules
// that nobody has any more. The GIL must not be held.
void drop_dead_packs();

} // namespace torchmdla
