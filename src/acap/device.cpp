#include "device.h"

#include "generator.h"
#include "storage.h"
#include "tensor.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>

namespace torchmdla::acap {

namespace {

// Allocator that returns addresses outside of any process's memory. The addresses only identify
// storages, as `data_ptr()` is used for, and reading through one fails at once. The content is
// stored elsewhere.
class Allocator : public c10::Allocator {
public:
  c10::DataPtr allocate(size_t bytes) override {
    constexpr uintptr_t alignment = 64;
    const auto size = (bytes + alignment) / alignment * alignment;
    const auto address = next_.fetch_add(size, std::memory_order_relaxed);
    return {reinterpret_cast<void*>(address), c10::Device(device_type, 0)};
  }

  void copy_data(void* destination, const void* source, size_t count) const override {
    TORCH_CHECK(false, "torchmdla: memory of the acap device has no addresses");
  }

private:
  static constexpr uintptr_t first_ = uintptr_t{1} << 56; // above user space on all systems
  std::atomic<uintptr_t> next_{first_};
};

c10::intrusive_ptr<c10::StorageImpl> create_storage(c10::StorageImpl::use_byte_size_t use_byte_size,
                                                    c10::SymInt size_bytes, c10::DataPtr data_ptr,
                                                    c10::Allocator* allocator, bool resizable) {
  if (!data_ptr) {
    data_ptr = allocator->allocate(size_bytes.expect_int());
  } else if (Storage::find(data_ptr.get())) {
    // A slice of a storage has the memory of that one. Tensors get the storage itself (`set_`).
    return c10::make_intrusive<c10::StorageImpl>(use_byte_size, std::move(size_bytes),
                                                 std::move(data_ptr), allocator, resizable);
  }
  return c10::make_intrusive<Storage>(std::move(size_bytes), std::move(data_ptr), allocator,
                                      resizable);
}

struct DeviceGuard final : c10::impl::NoOpDeviceGuardImpl<device_type> {
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::Device getDevice() const override { return {device_type, 0}; }
  c10::Stream getStream(c10::Device) const noexcept override { return stream(); }
  c10::Stream getNewStream(c10::Device, int) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return stream(); }
  void synchronizeDevice(c10::DeviceIndex) const override { mark_step(); }

private:
  static c10::Stream stream() noexcept {
    return c10::Stream(c10::Stream::DEFAULT, c10::Device(device_type, 0));
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return default_generator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return make_generator(); }
  at::Device getDeviceFromPtr(void*) const override { return {device_type, 0}; }
  // Nothing is transferred to a device, so ordinary memory serves as pinned memory.
  at::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize(storage, bytes);
  }
};

} // namespace

void register_device() {
  static Allocator allocator;
  static const DeviceGuard guard;
  static Hooks hooks;
  c10::SetAllocator(device_type, &allocator);
  c10::SetStorageImplCreate(device_type, &create_storage);
  c10::impl::device_guard_impl_registry[static_cast<size_t>(device_type)].store(&guard);
  at::RegisterPrivateUse1HooksInterface(&hooks);
}

} // namespace torchmdla::acap
