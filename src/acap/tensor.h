// Tensors on the acap device.
#pragma once

#include "storage.h"

#include <c10/core/TensorImpl.h>

#include <optional>

namespace torchmdla::acap {

constexpr auto device_type = c10::DeviceType::PrivateUse1;

inline bool is_acap(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == device_type;
}

// Throws where `device` is an acap device that does not exist.
void check_index(c10::Device device);

// How a view is taken of another one, or of its storage's base.
struct View {
  std::shared_ptr<const View> parent; // null: of the base
  c10::OperatorHandle op;
  std::vector<c10::IValue> arguments; // the tensor's place is empty
  at::Tensor meta;                    // the view's type
};

// A tensor like any other, which also knows as what view of its storage's base it was taken, so
// that it can be read, and written to, by ops in a graph. Without that knowledge (`module.to()` and
// `set_data` leave plain TensorImpls) its geometry tells all the same.
class TensorImpl : public c10::TensorImpl {
public:
  TensorImpl(c10::Storage storage, c10::DispatchKeySet keys, at::ScalarType dtype,
             std::shared_ptr<const View> view);

  c10::intrusive_ptr<c10::TensorImpl>
  shallow_copy_and_detach(const c10::VariableVersion& version,
                          bool allow_tensor_metadata_change) const override;
  c10::intrusive_ptr<c10::TensorImpl>
  shallow_copy_and_detach(c10::VariableVersion&& version,
                          bool allow_tensor_metadata_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>& source) override;

  // Null if it is not known, or not of the base that the storage has now.
  std::shared_ptr<const View> view() const;

  // What was recorded for the view as its storage is now, if it is still there.
  ValuePtr recorded() const;
  void remember(const ValuePtr& value);

  // For a tensor whose geometry or storage was changed.
  void forget();

private:
  std::shared_ptr<const View> view_;
  uint64_t epoch_ = 0;
  std::weak_ptr<Value> recorded_;
  uint64_t version_ = 0;
};

// A tensor with a storage of its own, laid out as `value.meta` is.
at::Tensor make_tensor(const ValuePtr& value);

// One with the content of a CPU tensor that nobody else writes to, in the same places: with gaps if
// it has some.
at::Tensor adopt(const at::Tensor& cpu);

// A tensor that shares `self`'s storage.
at::Tensor make_view(const at::Tensor& self, const Geometry& geometry,
                     std::shared_ptr<const View> view);

// The content of `tensor`; computes its storage where no op expresses what view it is.
ValuePtr value_of(const at::Tensor& tensor);

// Makes `value` the content of `tensor` if a graph can express that; it has the tensor's dtype and
// sizes.
bool write(const at::Tensor& tensor, const ValuePtr& value);

// The storage as `tensor` sees it, as a CPU tensor.
at::Tensor cpu_alias(const at::Tensor& tensor);

// The same for an op that writes to it.
at::Tensor cpu_alias_for_writing(const at::Tensor& tensor);

// Gives `tensor` another place in its storage.
void place_in(const at::Tensor& tensor, const Geometry& geometry);

// After an op that wrote to `alias`, `tensor`'s alias: the storage has other content, and maybe
// another size, and the tensor maybe another geometry.
void written(const at::Tensor& tensor, const at::Tensor& alias);

// Calls `write` with `tensor`'s alias, and takes note of what that wrote.
template <class Write> void write_on_cpu(const at::Tensor& tensor, Write write) {
  auto alias = cpu_alias_for_writing(tensor);
  write(alias);
  written(tensor, alias);
}

// Where `tensor` fills its storage, it becomes the base: one that came as bytes (torch.load) has
// its type from now on.
void rebase(const at::Tensor& tensor);

} // namespace torchmdla::acap
