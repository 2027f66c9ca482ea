// Where acap tensors keep what they are: a storage whose bytes may not have been computed yet.
#pragma once

#include "graph.h"

#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/SmallVector.h>

#include <exception>

namespace torchmdla::acap {

// How a tensor lies in its storage.
struct Geometry {
  c10::SmallVector<int64_t, 6> sizes;
  c10::SmallVector<int64_t, 6> strides;
  int64_t offset; // in elements
  at::ScalarType dtype;

  static Geometry of(const at::Tensor& tensor);
  bool operator==(const Geometry& other) const;

  bool is_empty() const;
  // Whether the elements fill the storage from its start on, in the order of the indices.
  bool is_contiguous() const;
  // The same in any order: no element twice, and nothing between two.
  bool is_dense() const;
  // Whether two elements may be in one place.
  bool may_overlap() const;
  // From the storage's start to the end of the last element.
  size_t bytes() const;
  // Throws, as PyTorch does, where that is beyond a storage of so many bytes.
  void check_fits(size_t storage_bytes) const;

private:
  // The dimensions, those with the smallest strides first.
  c10::SmallVector<size_t, 6> by_stride() const;
};

// All that alias share it, so whoever writes through one changes what the others read. The content
// is the value of one tensor, the base, which the others are views of. Every access to the content
// needs graph_mutex().
class Storage : public c10::StorageImpl {
public:
  Storage(c10::SymInt size_bytes, c10::DataPtr data_ptr, c10::Allocator* allocator, bool resizable);
  ~Storage() override;

  // PyTorch makes other storages around the address of one, to reach its bytes (pickling does).
  // These are the same.
  static Storage& of(const c10::Storage& storage);
  static Storage& of(const at::Tensor& tensor) { return of(tensor.storage()); }

  const Geometry& base() const { return base_; }
  const ValuePtr& value() const { return value_; }

  // Changes with every write.
  uint64_t version() const { return version_; }
  // Changes with every base.
  uint64_t epoch() const { return epoch_; }

  // Sets another base and content; views of the former base are unknown. Returns the former
  // content.
  [[nodiscard]] ValuePtr reset(Geometry base, ValuePtr value);

  // Sets another content and returns the former one. The caller releases it without graph_mutex():
  // a tensor that Python has seen takes the GIL when it goes, and the thread that holds the GIL may
  // wait for the mutex.
  [[nodiscard]] ValuePtr write(ValuePtr value);

  // Content written to in place, by an op that ran on the CPU.
  void touch() { ++version_; }

private:
  const void* const address_; // PyTorch drops the pointer before the storage
  Geometry base_;
  ValuePtr value_;
  uint64_t version_ = 0;
  uint64_t epoch_ = 0;
};

// Computes the content of all storages, as one graph. Where something in it fails, what does not
// depend on that is computed all the same; gives the first error.
std::exception_ptr compute_all();

// The same, and throws that error.
void mark_step();

// Computes `tensor`'s storage and gives the CPU tensor that holds its content, laid out as the
// base is.
at::Tensor settle(const at::Tensor& tensor);

// The same, of content that nothing else refers to: it may be written to.
at::Tensor settle_for_writing(const at::Tensor& tensor);

// Makes it `bytes` long, as `UntypedStorage.resize_` does: what fits in stays.
void resize(const c10::Storage& storage, size_t bytes);

} // namespace torchmdla::acap
