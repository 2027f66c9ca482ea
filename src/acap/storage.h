// Storage of acap tensors. Its bytes may not have been computed yet.
#pragma once

#include "graph.h"

#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/SmallVector.h>

#include <exception>
#include <optional>

namespace torchmdla::acap {

// Layout of a tensor in its storage.
struct Geometry {
  c10::SmallVector<int64_t, 6> sizes;
  c10::SmallVector<int64_t, 6> strides;
  int64_t offset; // in elements
  at::ScalarType dtype;

  static Geometry of(const at::Tensor& tensor);
  bool operator==(const Geometry& other) const;

  bool is_empty() const;
  // Return whether the elements fill the storage from its start, in the order of the indices.
  bool is_contiguous() const;
  // Return whether the elements fill the storage from its start in any order, without overlaps and
  // gaps.
  bool is_dense() const;
  // Return whether two elements may have the same place.
  bool may_overlap() const;
  // Return the number of bytes from the storage's start to the end of the last element.
  size_t bytes() const;
  // Throw, as PyTorch does, if the elements do not fit in a storage of `storage_bytes` bytes.
  void check_fits(size_t storage_bytes) const;

private:
  // Return the dimensions in order of increasing strides.
  c10::SmallVector<size_t, 6> by_stride() const;
};

// Storage that all aliasing tensors share, so that a write through one changes the others. The
// content is the value of one tensor, the base; the others are views of it. Every access to the
// content requires graph_mutex().
class Storage : public c10::StorageImpl {
public:
  Storage(c10::SymInt size_bytes, c10::DataPtr data_ptr, c10::Allocator* allocator, bool resizable);
  ~Storage() override;

  // Return the storage of this object. To access its bytes, PyTorch creates other storages with the
  // same address (in pickling); for these, return the original one.
  static Storage& of(const c10::Storage& storage);
  static Storage& of(const at::Tensor& tensor) { return of(tensor.storage()); }

  // Memory of a storage, `offset` bytes from its start.
  struct Place {
    c10::Storage storage;
    size_t offset;
  };

  // Return the place of `address`, which may be that of a slice of a storage; nullopt if no storage
  // has it.
  static std::optional<Place> find(const void* address);

  const Geometry& base() const { return base_; }
  const ValuePtr& value() const { return value_; }

  // Return a number that changes with every write.
  uint64_t version() const { return version_; }
  // Return a number that changes with every new base.
  uint64_t epoch() const { return epoch_; }

  // Set a new base and content. Views of the former base are invalid afterwards. Return the former
  // content.
  [[nodiscard]] ValuePtr reset(Geometry base, ValuePtr value);

  // Set a new content and return the former one. The caller must release it without holding
  // graph_mutex(). Destruction of a tensor that Python has seen acquires the GIL, and the thread
  // that holds the GIL may wait for the mutex.
  [[nodiscard]] ValuePtr write(ValuePtr value);

  // Set a content that ops make from the present one by a write to a part of it.
  [[nodiscard]] ValuePtr write_part(ValuePtr value);

  // Return the number of these writes since the content was computed last.
  size_t part_writes() const { return part_writes_; }

  // Note that an op on the CPU wrote to the content in place.
  void bump_version() { ++version_; }

private:
  const void* const address_; // PyTorch drops the pointer before the storage
  Geometry base_;
  ValuePtr value_;
  uint64_t version_ = 0;
  uint64_t epoch_ = 0;
  size_t part_writes_ = 0;
};

// Compute the content of all storages, as one graph. If something fails, still compute everything
// that does not depend on it. Return the first error, or null.
std::exception_ptr compute_all();

// Compute the content of all storages and throw the first error.
void mark_step();

// Compute the storage of `tensor`. Return the CPU tensor with its content, in the layout of the
// base.
at::Tensor materialise(const at::Tensor& tensor);

// Do the same for writing: nothing else refers to the returned content.
at::Tensor materialise_for_writing(const at::Tensor& tensor);

// Resize a storage to `bytes` bytes, as `UntypedStorage.resize_` does. Bytes that fit are kept.
void resize(const c10::Storage& storage, size_t bytes);

} // namespace torchmdla::acap
