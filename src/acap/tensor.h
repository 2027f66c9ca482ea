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

// Throw if `device` is an acap device that does not exist.
void check_index(c10::Device device);

// A view of another view, or of the base of a storage.
struct View {
  std::shared_ptr<const View> parent; // null for a view of the base
  c10::OperatorHandle op;
  std::vector<c10::IValue> arguments; // the first one, for the tensor, is empty
  at::Tensor meta;                    // the view's type
};

// Tensor that knows as which view of its storage's base it was created. Ops in a graph can
// therefore read and write it. Plain TensorImpls without that knowledge (from `module.to()` and
// `set_data`) rely on their geometry.
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

  // Return the view, or null if it is unknown or belongs to a former base of the storage.
  std::shared_ptr<const View> view() const;

  // Return the value that was recorded for the view since the last write, if it still exists.
  ValuePtr recorded() const;
  void remember(const ValuePtr& value);

  // Discard the view and value after a change of geometry or storage.
  void forget();

private:
  std::shared_ptr<const View> view_;
  uint64_t epoch_ = 0;
  std::weak_ptr<Value> recorded_;
  uint64_t version_ = 0;
};

// Return a tensor with its own storage, in the layout of `value.meta`.
at::Tensor make_tensor(const ValuePtr& value);

// Return a tensor with the content and layout, including gaps, of a CPU tensor. No other code may
// write to that tensor.
at::Tensor wrap_cpu_tensor(const at::Tensor& cpu);

// Return a tensor that shares the storage of `self`.
at::Tensor make_view(const at::Tensor& self, const Geometry& geometry,
                     std::shared_ptr<const View> view);

// Return the value of `tensor`. Its storage is computed if ops cannot express the view.
ValuePtr value_of(const at::Tensor& tensor);

// Make `value` the content of `tensor`. It must have the dtype and sizes of `tensor`. Return false
// if a graph cannot express the write, or a write to memory is cheaper.
bool write(const at::Tensor& tensor, const ValuePtr& value);

// Return a CPU tensor with the geometry of `tensor` on the content of its storage.
at::Tensor cpu_alias(const at::Tensor& tensor);

// Return such a CPU tensor for an op that writes to it.
at::Tensor cpu_alias_for_writing(const at::Tensor& tensor);

// Change the geometry of `tensor` in its storage.
void place_in(const at::Tensor& tensor, const Geometry& geometry);

// Update `tensor` after an op wrote to its alias `alias`. The storage has new content and possibly
// a new size, and the tensor may have a new geometry.
void handle_write(const at::Tensor& tensor, const at::Tensor& alias);

// Call `write` with the alias of `tensor` and update `tensor` afterwards.
template <class Write> void write_on_cpu(const at::Tensor& tensor, Write write) {
  auto alias = cpu_alias_for_writing(tensor);
  write(alias);
  handle_write(tensor, alias);
}

// Make `tensor` the base if it fills its storage. A storage loaded as bytes (torch.load) then has
// the type of `tensor`.
void rebase(const at::Tensor& tensor);

} // namespace torchmdla::acap
