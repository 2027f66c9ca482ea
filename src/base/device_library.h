// Shared libraries of vendors that load the code of their devices (torchmdla/device.h).
#pragma once

#include <torchmdla/device.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace torchmdla {

// Failure of a device's library: it cannot be opened, or it does not load some code.
struct DeviceLibraryError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Names of the functions of an artifact's manifest. Absent ones are empty.
struct CodeNames {
  std::string entry, workspace, fault;
  std::vector<std::string> packs;
};

// Code of a device that is not an image, in a file with compiled code
// (torchmdla/compile_service/stored_code.py).
struct DeviceBlock {
  std::string device;
  CodeNames names;
  std::span<const std::byte> object_code;
};

// Return the device's code in these bytes, or nullopt if they are not such a block: an image. Throw
// BadBytes if the block is damaged.
std::optional<DeviceBlock> read_device_block(std::span<const std::byte> bytes);

class DeviceLibrary;

// Code that a library has loaded.
class LibraryCode {
public:
  // Load the code. Throw DeviceLibraryError.
  LibraryCode(std::shared_ptr<const DeviceLibrary> library, std::span<const std::byte> object_code,
              const CodeNames& names);
  ~LibraryCode();
  LibraryCode(const LibraryCode&) = delete;
  LibraryCode& operator=(const LibraryCode&) = delete;

  const mdla_code& code() const { return code_; }
  size_t pack_count() const { return pack_count_; }

private:
  const std::shared_ptr<const DeviceLibrary> library_;
  const size_t pack_count_;
  mdla_code code_{};
};

// A library in this process. It is never closed.
class DeviceLibrary {
public:
  // Open the library. Throw DeviceLibraryError.
  DeviceLibrary(const std::string& path, mdla_find_call find_call);

  std::string name() const { return device_->name; }

  // Return what code needs to run here: the format that the library reads, and what the machine
  // has.
  std::set<std::string> features() const;

  const mdla_device& device() const { return *device_; }
  mdla_find_call find_call() const { return find_call_; }

private:
  const mdla_device* const device_;
  const mdla_find_call find_call_;
};

// Open a library, so that `find_device_library` finds it. It replaces an earlier one of the same
// device. Throw DeviceLibraryError.
std::shared_ptr<const DeviceLibrary> add_device_library(const std::string& path,
                                                        mdla_find_call find_call);

// Return the library of a device, or null. The libraries in TORCHMDLA_DEVICE_LIBRARIES, paths
// separated by colons, are opened at the first call. Throw DeviceLibraryError if one of them cannot
// be opened.
std::shared_ptr<const DeviceLibrary> find_device_library(const std::string& device,
                                                         mdla_find_call find_call);

// Remove the devices from features and return their names: `device=NAME`.
std::vector<std::string> take_devices(std::set<std::string>& features);

// Return the features of a device's machine as a target lists them: `NAME:feature`.
std::set<std::string> qualified(const std::string& device, const std::set<std::string>& features);

} // namespace torchmdla
