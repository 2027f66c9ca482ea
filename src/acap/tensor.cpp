#include "tensor.h"

#include "base/forks.h"
#include "views.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/Allocator.h>

namespace torchmdla::acap {

namespace {

TensorImpl* find_impl(const at::Tensor& tensor) {
  return dynamic_cast<TensorImpl*>(tensor.unsafeGetTensorImpl());
}

c10::Storage make_storage(const Geometry& geometry, const ValuePtr& value) {
  const auto bytes = static_cast<int64_t>(geometry.bytes());
  auto* allocator = c10::GetAllocator(device_type);
  auto storage = c10::Storage(c10::make_intrusive<Storage>(bytes, allocator->allocate(bytes),
                                                           allocator, /*resizable=*/true));
  ValuePtr former;
  const ForkSafeLock guard(graph_mutex());
  former = static_cast<Storage*>(storage.unsafeGetStorageImpl())->reset(geometry, value);
  return storage;
}

void place(const at::Tensor& tensor, const Geometry& geometry) {
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_offset(geometry.offset);
  impl->set_sizes_and_strides(geometry.sizes, geometry.strides);
}

} // namespace

void check_index(c10::Device device) {
  TORCH_CHECK(device.type() != device_type || device.index() <= 0,
              "there is one acap device, acap:0, but no ", device);
}

TensorImpl::TensorImpl(c10::Storage storage, c10::DispatchKeySet keys, at::ScalarType dtype,
                       std::shared_ptr<const View> view)
    : c10::TensorImpl(c10::TensorImpl::VIEW, std::move(storage), keys,
                      c10::scalarTypeToTypeMeta(dtype)),
      view_(std::move(view)) {
  if (auto* content = dynamic_cast<Storage*>(storage_.unsafeGetStorageImpl()))
    epoch_ = content->epoch();
}

c10::intrusive_ptr<c10::TensorImpl>
TensorImpl::shallow_copy_and_detach(const c10::VariableVersion& version,
                                    bool allow_tensor_metadata_change) const {
  auto copy = c10::make_intrusive<TensorImpl>(storage_, key_set_,
                                              c10::typeMetaToScalarType(data_type_), view_);
  copy_tensor_metadata(this, copy.get(), version, allow_tensor_metadata_change);
  copy->epoch_ = epoch_;
  return copy;
}

c10::intrusive_ptr<c10::TensorImpl>
TensorImpl::shallow_copy_and_detach(c10::VariableVersion&& version,
                                    bool allow_tensor_metadata_change) const {
  return shallow_copy_and_detach(static_cast<const c10::VariableVersion&>(version),
                                 allow_tensor_metadata_change);
}

void TensorImpl::shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>& source) {
  copy_tensor_metadata(source.get(), this, version_counter(), allow_tensor_metadata_change());
  const auto* known = dynamic_cast<const TensorImpl*>(source.get());
  view_ = known ? known->view_ : nullptr;
  epoch_ = known ? known->epoch_ : 0;
  recorded_.reset();
}

std::shared_ptr<const View> TensorImpl::view() const {
  const auto* storage = dynamic_cast<const Storage*>(storage_.unsafeGetStorageImpl());
  const bool holds = view_ && storage && storage->epoch() == epoch_ &&
                     view_->meta.sizes() == sizes() &&
                     view_->meta.scalar_type() == c10::typeMetaToScalarType(data_type_);
  return holds ? view_ : nullptr;
}

ValuePtr TensorImpl::recorded() const {
  const auto* storage = dynamic_cast<const Storage*>(storage_.unsafeGetStorageImpl());
  return storage && storage->version() == version_ ? recorded_.lock() : nullptr;
}

void TensorImpl::remember(const ValuePtr& value) {
  recorded_ = value;
  version_ = Storage::of(storage_).version();
}

void TensorImpl::forget() {
  view_.reset();
  recorded_.reset();
}

at::Tensor make_tensor(const ValuePtr& value) {
  Geometry geometry{{value->meta.sizes().begin(), value->meta.sizes().end()},
                    {value->meta.strides().begin(), value->meta.strides().end()},
                    0,
                    value->meta.scalar_type()};
  if (!geometry.is_dense()) { // an expanded result, which eager PyTorch materialises too
    const auto dense = at::detail::empty_meta(value->meta.sizes(), value->meta.scalar_type());
    geometry.strides.assign(dense.strides().begin(), dense.strides().end());
  }
  // The constructor for non-view tensors adds the dispatch keys that belong to the backend.
  const at::Tensor model = at::detail::make_tensor<c10::TensorImpl>(
      make_storage(geometry, value), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::scalarTypeToTypeMeta(geometry.dtype));
  place(model, geometry);
  return model;
}

at::Tensor make_view(const at::Tensor& self, const Geometry& geometry,
                     std::shared_ptr<const View> view) {
  const at::Tensor view_tensor = at::detail::make_tensor<TensorImpl>(
      c10::Storage(self.storage()), self.key_set(), geometry.dtype, std::move(view));
  place(view_tensor, geometry);
  return view_tensor;
}

namespace {

// Return a separate tensor on the memory of the CPU tensor `content`.
at::Tensor alias_of(const at::Tensor& content, const Geometry& geometry) {
  auto alias = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(content.storage()),
                                                        c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                        c10::scalarTypeToTypeMeta(geometry.dtype));
  place(alias, geometry);
  return alias;
}

} // namespace

at::Tensor wrap_cpu_tensor(const at::Tensor& cpu) {
  auto geometry = Geometry::of(cpu);
  geometry.offset = 0;
  if (geometry.is_dense() || cpu.is_conj() || cpu.is_neg())
    return make_tensor(std::make_shared<Value>(cpu));
  const auto elements = static_cast<int64_t>(cpu.storage().nbytes() / cpu.itemsize());
  const Geometry whole{{elements}, {1}, 0, geometry.dtype};
  return make_view(make_tensor(std::make_shared<Value>(alias_of(cpu, whole))), Geometry::of(cpu),
                   nullptr);
}

namespace {

// Return whether `view`, as which `tensor` was created, is a part of computed data that is in one
// piece: a number, a row, a mini-batch. A program reads such parts at many places, and a graph that
// selects them would differ for each. Parts of parameters have fixed places, and the runtime
// recognises a parameter by its whole tensor.
bool is_piece_of_data(const at::Tensor& tensor, const View& view, const Storage& storage) {
  return !storage.value()->node && selects_part(view) && tensor.is_contiguous() &&
         !(tensor.is_view() && tensor._base().requires_grad());
}

// Return the value of `tensor` as the graph represents it, or null.
ValuePtr value_in_graph(const at::Tensor& tensor) {
  auto& storage = Storage::of(tensor);
  if (!storage.value()) return nullptr;
  const auto geometry = Geometry::of(tensor);
  if (geometry == storage.base()) return storage.value();
  auto* impl = find_impl(tensor);
  if (!impl) return as_strided(storage, geometry);
  if (auto recorded = impl->recorded()) return recorded;
  const auto view = impl->view();
  if (view && is_piece_of_data(tensor, *view, storage)) return nullptr;
  auto value = view ? replay(*view, storage.value()) : as_strided(storage, geometry);
  if (value) impl->remember(value);
  return value;
}

// Apply the lazy conjugation and negation of `tensor`, which its storage does not record.
ValuePtr with_bits_of(const at::Tensor& tensor, ValuePtr value) {
  if (tensor.is_conj()) value = append("aten::conj_physical", "", {value}, value->meta);
  if (tensor.is_neg()) value = append("aten::neg", "", {value}, value->meta);
  return value;
}

} // namespace

ValuePtr value_of(const at::Tensor& tensor) {
  {
    const ForkSafeLock guard(graph_mutex());
    if (auto value = value_in_graph(tensor)) return with_bits_of(tensor, std::move(value));
  }
  return std::make_shared<Value>(cpu_alias(tensor));
}

namespace {

// Return whether a write to a part changes the memory at once. As an op it copies the whole
// content, so a loop that fills a tensor would take quadratic time.
bool changes_memory(const Storage& storage, const ValuePtr& value) {
  constexpr size_t most_part_writes = 256;
  const bool is_computed = !storage.value()->node && !value->node;
  return is_computed || storage.part_writes() >= most_part_writes;
}

} // namespace

bool write(const at::Tensor& tensor, const ValuePtr& value) {
  ValuePtr former;
  const ForkSafeLock guard(graph_mutex());
  auto& storage = Storage::of(tensor);
  const auto geometry = Geometry::of(tensor);
  if (!storage.base().is_dense() || storage.nbytes() != storage.base().bytes()) return false;
  if (geometry == storage.base()) {
    former = storage.write(value);
    return true;
  }
  if (!storage.value() || changes_memory(storage, value)) return false;
  const auto* impl = find_impl(tensor);
  const auto view = impl ? impl->view() : nullptr;
  auto content =
      view ? scatter(*view, storage.value(), value) : as_strided_scatter(storage, geometry, value);
  if (!content) return false;
  former = storage.write_part(std::move(content));
  return true;
}

namespace {

at::Tensor alias_of(const at::Tensor& tensor, const at::Tensor& content) {
  auto alias = alias_of(content, Geometry::of(tensor));
  alias._set_conj(tensor.is_conj());
  alias._set_neg(tensor.is_neg());
  return alias;
}

} // namespace

at::Tensor cpu_alias(const at::Tensor& tensor) {
  return alias_of(tensor, materialise(tensor));
}

at::Tensor cpu_alias_for_writing(const at::Tensor& tensor) {
  return alias_of(tensor, materialise_for_writing(tensor));
}

void place_in(const at::Tensor& tensor, const Geometry& geometry) {
  place(tensor, geometry);
  if (auto* impl = find_impl(tensor)) impl->forget();
}

void handle_write(const at::Tensor& tensor, const at::Tensor& alias) {
  const auto geometry = Geometry::of(alias);
  if (!(Geometry::of(tensor) == geometry)) place_in(tensor, geometry);
  auto& storage = Storage::of(tensor);
  ValuePtr former;
  const ForkSafeLock guard(graph_mutex());
  const auto bytes = alias.storage().nbytes();
  if (bytes == storage.nbytes()) {
    storage.value()->tensor.unsafeGetTensorImpl()->bump_version();
    storage.bump_version();
    return;
  }
  // The op resized the storage.
  storage.set_nbytes(bytes);
  Geometry base = geometry;
  if (!base.is_dense() || base.bytes() != bytes)
    base = {{static_cast<int64_t>(bytes)}, {1}, 0, at::kByte};
  former = storage.reset(base, std::make_shared<Value>(alias_of(alias, base)));
}

void rebase(const at::Tensor& tensor) {
  auto& storage = Storage::of(tensor);
  const auto geometry = Geometry::of(tensor);
  if (!geometry.is_dense() || geometry.bytes() != storage.nbytes()) return;
  if (storage.base() == geometry) return;
  auto content = alias_of(materialise(tensor), geometry);
  ValuePtr former;
  const ForkSafeLock guard(graph_mutex());
  former = storage.reset(geometry, std::make_shared<Value>(std::move(content)));
}

} // namespace torchmdla::acap
