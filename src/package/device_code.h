// Code in packages: images, and code of other devices, which a library or Python loads.
#pragma once

#include "base/device_library.h"
#include "runtime/executable.h"

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace torchmdla {

// Code in this process, before it is bound to a group.
struct DeviceCode {
  Entry entry = nullptr;
  std::vector<Entry> packs;
  std::vector<void (*)(void*)>
      releases; // for each pack a function or null; empty if no pack has one
  int64_t (*workspace)(const int64_t* sizes) = nullptr;
  const char* (*fault)() = nullptr;
  bool competes_with_eager = false;
  void* context = nullptr;
  int32_t (*wait)(void* result) = nullptr;
  void (*forget)(void* result) = nullptr;
  std::shared_ptr<const CodeOwner> owner;
};

// Python's devices, if this process has Python. The functions take the GIL.
struct PythonDevices {
  // Return what code of a device needs to run here; nullopt if the device does not exist.
  std::function<std::optional<std::set<std::string>>(const std::string& device)> features;
  // Load a block of a package.
  std::function<DeviceCode(const std::string& device, std::span<const std::byte> block)> load;
};
void set_python_devices(PythonDevices devices);

// Return what code of a device needs to run here, qualified by the device's name. The set is empty
// if neither a library nor Python has the device.
std::set<std::string> features_of_device(const std::string& device);

// Load an image or a device's block. Throw if that is not possible.
DeviceCode load_device_code(std::span<const std::byte> bytes, const CodeNames& names);

} // namespace torchmdla
