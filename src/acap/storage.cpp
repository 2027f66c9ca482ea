#include "storage.h"

#include "base/forks.h"
#include "base/never_destroyed.h"
#include "python/python_objects.h"

#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

namespace torchmdla::acap {

namespace {

// All existing storages, by the address that their memory is given.
struct Storages {
  std::mutex mutex; // locked after all other mutexes
  std::map<const void*, Storage*> by_address;
};

Storages& storages() {
  static NeverDestroyed<Storages> instance; // tensors may live until the process ends
  return *instance;
}

at::Tensor copy_in_layout(const at::Tensor& tensor, const Geometry& base) {
  auto copy = at::Tensor(at::detail::empty_strided_cpu(base.sizes, base.strides, base.dtype));
  copy.copy_(tensor.resolve_conj().resolve_neg());
  return copy;
}

// Return whether `tensor` has the layout of `base` and starts at the beginning of its memory.
bool owns_layout(const at::Tensor& tensor, const Geometry& base) {
  return tensor.sizes() == c10::IntArrayRef(base.sizes) &&
         tensor.strides() == c10::IntArrayRef(base.strides) && tensor.storage_offset() == 0 &&
         tensor.scalar_type() == base.dtype && !tensor.is_conj() && !tensor.is_neg() &&
         tensor.storage().nbytes() >= base.bytes();
}

} // namespace

Geometry Geometry::of(const at::Tensor& tensor) {
  return {{tensor.sizes().begin(), tensor.sizes().end()},
          {tensor.strides().begin(), tensor.strides().end()},
          tensor.storage_offset(),
          tensor.scalar_type()};
}

bool Geometry::operator==(const Geometry& other) const {
  return offset == other.offset && dtype == other.dtype && sizes == other.sizes &&
         strides == other.strides;
}

bool Geometry::is_empty() const {
  return std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
}

bool Geometry::is_contiguous() const {
  if (offset != 0) return false;
  if (is_empty()) return true;
  int64_t expected = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    if (sizes[i] != 1 && strides[i] != expected) return false;
    expected *= sizes[i];
  }
  return true;
}

c10::SmallVector<size_t, 6> Geometry::by_stride() const {
  c10::SmallVector<size_t, 6> order;
  for (size_t i = 0; i < sizes.size(); ++i)
    order.push_back(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return strides[a] < strides[b]; });
  return order;
}

bool Geometry::is_dense() const {
  if (offset != 0) return false;
  if (is_empty()) return true;
  int64_t expected = 1;
  for (const auto i : by_stride()) {
    if (sizes[i] != 1 && strides[i] != expected) return false;
    expected *= sizes[i];
  }
  return true;
}

bool Geometry::may_overlap() const {
  if (is_empty()) return false;
  int64_t extent = 1;
  for (const auto i : by_stride()) {
    if (sizes[i] == 1) continue;
    if (strides[i] < extent) return true;
    extent += (sizes[i] - 1) * strides[i];
  }
  return false;
}

size_t Geometry::bytes() const {
  if (is_empty()) return 0;
  int64_t elements = 1;
  for (size_t i = 0; i < sizes.size(); ++i) {
    elements += (sizes[i] - 1) * strides[i];
  }
  return static_cast<size_t>(offset + elements) * c10::elementSize(dtype);
}

void Geometry::check_fits(size_t storage_bytes) const {
  TORCH_CHECK(bytes() <= storage_bytes, "setStorage: sizes ", c10::IntArrayRef(sizes), ", strides ",
              c10::IntArrayRef(strides), ", storage offset ", offset, ", and itemsize ",
              c10::elementSize(dtype), " requiring a storage size of ", bytes(),
              " are out of bounds for storage of size ", storage_bytes);
}

// A new storage contains bytes until a tensor is stored in it.
Storage::Storage(c10::SymInt size_bytes, c10::DataPtr data_ptr, c10::Allocator* allocator,
                 bool resizable)
    : c10::StorageImpl(use_byte_size_t(), size_bytes, std::move(data_ptr), allocator, resizable),
      address_(data()) {
  const auto bytes = size_bytes.expect_int();
  base_ = {{bytes}, {1}, 0, at::kByte};
  const ForkSafeLock guard(storages().mutex);
  storages().by_address.emplace(address_, this);
}

Storage::~Storage() {
  const ForkSafeLock guard(storages().mutex);
  storages().by_address.erase(address_);
}

Storage& Storage::of(const c10::Storage& storage) {
  auto* impl = storage.unsafeGetStorageImpl();
  if (auto* acap_storage = dynamic_cast<Storage*>(impl)) return *acap_storage;
  const ForkSafeLock guard(storages().mutex);
  const auto entry = storages().by_address.find(impl->data());
  TORCH_CHECK(entry != storages().by_address.end(),
              "torchmdla: a tensor on the acap device has a storage of another device");
  return *entry->second;
}

std::optional<Storage::Place> Storage::find(const void* address) {
  const ForkSafeLock guard(storages().mutex);
  auto entry = storages().by_address.upper_bound(address);
  if (entry == storages().by_address.begin()) return std::nullopt;
  const auto& [start, storage] = *--entry;
  const auto offset = reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(start);
  if (offset > storage->nbytes()) return std::nullopt;
  return Place{c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage)), offset};
}

ValuePtr Storage::reset(Geometry base, ValuePtr value) {
  base_ = std::move(base);
  ++epoch_;
  return write(std::move(value));
}

ValuePtr Storage::write(ValuePtr value) {
  ++version_;
  return std::exchange(value_, std::move(value));
}

ValuePtr Storage::write_part(ValuePtr value) {
  part_writes_ = value_->node ? part_writes_ + 1 : 1;
  return write(std::move(value));
}

namespace {

std::vector<ValuePtr> pending_values() {
  const ForkSafeLock guard(graph_mutex());
  std::vector<ValuePtr> values;
  const ForkSafeLock table_guard(storages().mutex);
  for (const auto& [address, storage] : storages().by_address)
    if (storage->value() && storage->value()->node) values.push_back(storage->value());
  return values;
}

// Compute `values`. Return the error of an op, or null.
std::exception_ptr try_to_compute(const std::vector<ValuePtr>& values) {
  try {
    compute(values);
  } catch (const PassingError&) {
    throw;
  } catch (const std::exception&) {
    return std::current_exception();
  }
  return nullptr;
}

} // namespace

std::exception_ptr compute_all() {
  const auto values = pending_values();
  const auto error = try_to_compute(values);
  if (error)
    for (const auto& value : values)
      try_to_compute({value});
  return error;
}

void mark_step() {
  if (const auto error = compute_all()) std::rethrow_exception(error);
}

namespace {

// Return the content, or an undefined tensor while it is pending. `former` receives content that is
// replaced.
at::Tensor materialised_content(Storage& storage, bool for_writing, ValuePtr& former) {
  if (!storage.value()) {
    auto tensor = at::Tensor(at::detail::empty_strided_cpu(
        storage.base().sizes, storage.base().strides, storage.base().dtype));
    former = storage.write(std::make_shared<Value>(std::move(tensor)));
  }
  const auto& value = storage.value();
  if (value->node) return {};
  const bool is_shared = for_writing && (value.use_count() > 1 || value->tensor.use_count() > 1 ||
                                         value->tensor.storage().use_count() > 1);
  if (is_shared || !owns_layout(value->tensor, storage.base()))
    former = storage.write(std::make_shared<Value>(copy_in_layout(value->tensor, storage.base())));
  return storage.value()->tensor;
}

at::Tensor materialise(Storage& storage, bool for_writing) {
  for (;;) {
    ValuePtr pending, former;
    {
      const ForkSafeLock guard(graph_mutex());
      if (auto content = materialised_content(storage, for_writing, former); content.defined())
        return content;
      pending = storage.value();
    }
    compute({pending});
  }
}

} // namespace

at::Tensor materialise(const at::Tensor& tensor) {
  return materialise(Storage::of(tensor), /*for_writing=*/false);
}

at::Tensor materialise_for_writing(const at::Tensor& tensor) {
  return materialise(Storage::of(tensor), /*for_writing=*/true);
}

void resize(const c10::Storage& storage, size_t bytes) {
  auto& content = Storage::of(storage);
  auto tensor = materialise(content, /*for_writing=*/false);
  auto memory = at::Tensor(at::detail::empty_cpu({static_cast<int64_t>(bytes)}, at::kByte));
  std::memcpy(memory.mutable_data_ptr(), tensor.storage().data(),
              std::min(bytes, content.nbytes()));
  ValuePtr former;
  const ForkSafeLock guard(graph_mutex());
  content.set_nbytes(bytes);
  former = content.reset({{static_cast<int64_t>(bytes)}, {1}, 0, at::kByte},
                         std::make_shared<Value>(std::move(memory)));
}

} // namespace torchmdla::acap
