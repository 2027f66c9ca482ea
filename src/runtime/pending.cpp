#include "pending.h"

#include <ATen/ops/from_blob.h>

#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

namespace torchmdla {

namespace {

// Memory of a result, as the context of its storage.
class PendingMemory {
public:
  PendingMemory(at::DataPtr memory, const at::Tensor& tensor,
                std::shared_ptr<const PendingCall> call, size_t output)
      : memory_(std::move(memory)), sizes_(tensor.sizes().vec()), strides_(tensor.strides().vec()),
        dtype_(tensor.scalar_type()), output_(output), device_(call->device),
        call_(std::move(call)) {}

  ~PendingMemory() {
    if (is_pending_) device_.forget(memory_.get());
  }

  const AsynchronousCalls* device() const {
    return is_pending_.load(std::memory_order_acquire) ? &device_ : nullptr;
  }

  void wait() {
    const std::lock_guard guard(mutex_);
    if (!is_pending_) return;
    if (device_.wait(memory_.get()) != 0) recover();
    is_pending_.store(false, std::memory_order_release);
    call_.reset(); // it keeps the inputs of the call alive
  }

private:
  void recover() const {
    const auto outputs = call_->recover(device_.fault ? device_.fault() : "");
    at::from_blob(memory_.get(), sizes_, strides_, dtype_).copy_(outputs.at(output_).toTensor());
  }

  const at::DataPtr memory_;
  const std::vector<int64_t> sizes_;
  const std::vector<int64_t> strides_;
  const c10::ScalarType dtype_;
  const size_t output_;
  const AsynchronousCalls device_;
  std::shared_ptr<const PendingCall> call_; // guarded by mutex_
  std::mutex mutex_;                        // held while a thread waits for the device
  std::atomic<bool> is_pending_{true};
};

void delete_memory(void* memory) {
  delete static_cast<PendingMemory*>(memory);
}

// Return the memory of a tensor that was made pending; null for other tensors.
PendingMemory* memory_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  const auto& memory = tensor.storage().data_ptr();
  return memory.get_deleter() == &delete_memory ? static_cast<PendingMemory*>(memory.get_context())
                                                : nullptr;
}

} // namespace

void make_pending(const at::Tensor& tensor, std::shared_ptr<const PendingCall> call,
                  size_t output) {
  const auto& storage = tensor.storage();
  auto* const data = storage.mutable_data();
  auto memory = storage.set_data_ptr(at::DataPtr(nullptr, tensor.device()));
  auto owner = std::make_unique<PendingMemory>(std::move(memory), tensor, std::move(call), output);
  storage.set_data_ptr_noswap(at::DataPtr(data, owner.release(), &delete_memory, tensor.device()));
}

const AsynchronousCalls* pending_device(const at::Tensor& tensor) {
  const auto* memory = memory_of(tensor);
  return memory ? memory->device() : nullptr;
}

void wait_for(const at::Tensor& tensor) {
  if (auto* memory = memory_of(tensor)) memory->wait();
}

void wait_for(c10::ArrayRef<c10::IValue> values) {
  for (const auto& value : values) {
    if (value.isTensor()) wait_for(value.toTensor());
    if (value.isTensorList())
      for (const at::Tensor& tensor : value.toTensorVector())
        wait_for(tensor);
  }
}

} // namespace torchmdla
