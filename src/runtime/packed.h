// Buffers that are made from parameters once per version of these: packed weights, folded
// statistics.
#pragma once

#include "base/forks.h"
#include "content_verifier.h"
#include "fingerprint.h"
#include "mapped_contents.h"

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

// A compiled function; docs/design/abi.md describes the ABI.
using Entry = int32_t (*)(void* const* buffers);

// Number of an entry's buffers before its arguments: workspace, packed buffers, symbols.
constexpr size_t buffers_before_arguments = 3;

// A buffer that a pack made elsewhere from parameters with these contents (`content_hash`).
struct PrebuiltBuffer {
  const void* data;
  std::vector<uint64_t> parameters;
  std::shared_ptr<const void> owner; // keeps `data` alive
};

// Recipe of a packed buffer: `function` makes it from the executable's arguments `arguments`.
// Buffers of equal recipes and parameters are shared.
struct Pack {
  Entry function;
  std::string recipe;
  std::vector<size_t> arguments;
  int64_t bytes;
  void (*release)(void* buffer) = nullptr; // called before the buffer's memory is freed, if set
  std::shared_ptr<const PrebuiltBuffer> prebuilt = nullptr; // used for parameters with its contents
  void* context = nullptr; // first buffer of `function` in place of the workspace, if set
};

// Failure of a pack. `has_python_error` is set if a Python exception waits to be raised.
struct PackingFailed : std::runtime_error {
  explicit PackingFailed(bool has_python_error)
      : std::runtime_error("torchmdla: packing parameters failed"),
        has_python_error(has_python_error) {}
  const bool has_python_error;
};

// State of a parameter when something was made from it: its identity, version and content. The
// content is a fingerprint, which is needed since writes through `.data` do not change the version.
// It is a copy for an unversioned parameter, whose content PyTorch itself changes without changing
// the version.
class ParameterState {
public:
  // Construct without the content.
  explicit ParameterState(const at::Tensor& parameter);

  // Construct for an unversioned parameter, with a copy of its content.
  ParameterState(const at::Tensor& parameter, std::shared_ptr<const std::byte[]> copy);

  // Return the state of a versioned parameter, with a fingerprint of its content.
  static ParameterState with_content(const at::Tensor& parameter);

  // Prefetch all memory that `describes` will read. A call finds it far from the caches, in
  // thousands of places.
  void prefetch() const;

  // Return whether `parameter`, whose data is at `data`, is the same version of the same tensor.
  // Return whether it has the same content if it is unversioned. Other inference tensors never
  // match, because they do not have a version.
  bool describes(const at::Tensor& parameter, const void* data) const;

  // Return whether both describe the same content.
  bool operator==(const ParameterState& other) const;

  // Return whether the parameter does not exist any more.
  bool is_dead() const { return tensor_.expired() || storage_.expired(); }

  // Return the address of the parameter's storage, for comparison only.
  const c10::StorageImpl* storage() const { return storage_._unsafe_get_target(); }

  // Return the described content. It is valid as long as the tensor has it.
  const void* data() const { return copy_ ? copy_.get() : data_; }

  // Return the fingerprint; empty if the content is a copy.
  const Fingerprint& content() const { return content_; }

  size_t bytes() const { return bytes_; }

  // Return whether its content is large and lies in a mapped file.
  bool is_mapped() const { return !copy_ && is_mapped_content(data_, bytes_); }

  uint64_t content_hash() const;

private:
  // Weak references, which keep other tensors and storages from getting these addresses.
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor_;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage_;
  const void* data_;
  int64_t version_;
  Fingerprint content_;
  std::shared_ptr<const std::byte[]> copy_; // set for an unversioned parameter
  size_t bytes_;
};

// Return the states of parameters, some of which are unversioned.
std::vector<ParameterState> states_of(c10::ArrayRef<at::Tensor> parameters,
                                      const std::vector<bool>& unversioned);

struct PackedBuffer {
  std::vector<ParameterState> parameters;
  std::shared_ptr<void> memory;
  int64_t bytes = 0;                           // counted in memory_use().packed; 0 if mapped
  mutable std::atomic<bool> is_dropped{false}; // not shared any more
};

// Return the buffer of `pack` for these parameters, shared with every executable that has it
// already. Throw PackingFailed. The GIL must not be held: a pack may be a Python function, so
// another thread may wait for the GIL while it packs.
std::shared_ptr<const PackedBuffer>
packed_buffer(const Pack& pack, std::vector<ParameterState> parameters, int64_t workspace_bytes);

// The packed buffers of an executable for one state of its parameters.
struct PackedSet {
  explicit PackedSet(std::vector<ParameterState> parameters);

  // Return its bytes in memory_use().packed, including those that others share.
  int64_t bytes() const;

  std::vector<ParameterState> parameters;
  std::vector<std::shared_ptr<const PackedBuffer>> buffers;
  std::vector<void*> addresses;
  // Fault of the device, if packing failed and there are no buffers. It is empty if the parameters
  // are not the ones that the code relies on.
  std::optional<std::string> fault;
  // Verifiers of the parameters' contents: of some lines by index, and of the pages of mapped ones.
  mutable ContentVerifier verifier;
  mutable MappedContents mapped;
};

// Slot in which an executable keeps its set. The set is replaced when a parameter has changed, and
// may be dropped at any time. A call keeps the set that it started with.
using PackedSlot = RcuCell<const PackedSet>;

// Return an empty slot. The functions below know all slots that live.
std::shared_ptr<PackedSlot> make_packed_slot();

// Return the result of `make`, and keep it in `slot` unless packs were refreshed meanwhile.
std::shared_ptr<const PackedSet>
store_packed(PackedSlot& slot, const std::function<std::shared_ptr<const PackedSet>()>& make);

using ParameterPredicate = std::function<bool(const ParameterState&)>;

// Drop all packs of the parameters for which `predicate` is true, so that the next call packs them
// again. The GIL must not be held.
void refresh_packs(const ParameterPredicate& predicate);

// Drop the packs of parameters that do not exist any more. PyTorch keeps the groups of traced
// modules that are not referenced any more. The GIL must not be held.
void drop_dead_packs();

} // namespace torchmdla
