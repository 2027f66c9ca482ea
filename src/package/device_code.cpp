#include "device_code.h"

#include "runtime/device_calls.h"
#include "runtime/load_image.h"

#include <c10/util/Exception.h>

#include <utility>

namespace torchmdla {

namespace {

struct ImageOwner : CodeOwner {
  explicit ImageOwner(std::span<const std::byte> data)
      : image(load_image(data, address_of_symbol)) {}
  const std::shared_ptr<const Image> image;
};

struct LibraryOwner : CodeOwner {
  LibraryOwner(std::shared_ptr<const DeviceLibrary> library, const DeviceBlock& block)
      : loaded(std::move(library), block.object_code, block.names) {}
  const LibraryCode loaded;
};

// Return the function `name` of `image`, or null for an empty name. Throw if the image lacks it.
template <class Function> Function function(const Image& image, const std::string& name) {
  if (name.empty()) return nullptr;
  auto* address = image.symbol(name);
  TORCH_CHECK(address, "the code has no function ", name);
  return reinterpret_cast<Function>(address);
}

DeviceCode load_image_code(std::span<const std::byte> bytes, const CodeNames& names) {
  const auto owner = std::make_shared<ImageOwner>(bytes);
  const auto& image = *owner->image;
  DeviceCode code{function<Entry>(image, names.entry),
                  {},
                  {},
                  function<int64_t (*)(const int64_t*)>(image, names.workspace),
                  function<const char* (*)()>(image, names.fault),
                  names.fault.empty(), // code of the CPU cannot fail
                  nullptr,
                  nullptr,
                  nullptr,
                  owner};
  for (const auto& pack : names.packs)
    code.packs.push_back(function<Entry>(image, pack));
  return code;
}

DeviceCode load_library_code(std::shared_ptr<const DeviceLibrary> library,
                             const DeviceBlock& block) {
  const auto owner = std::make_shared<LibraryOwner>(std::move(library), block);
  const auto& loaded = owner->loaded.code();
  DeviceCode code{
      loaded.entry,  {},   {}, loaded.workspace, loaded.fault, false, loaded.context, loaded.wait,
      loaded.forget, owner};
  const auto count = owner->loaded.pack_count();
  if (count != 0) code.packs.assign(loaded.packs, loaded.packs + count);
  if (loaded.releases) code.releases.assign(loaded.releases, loaded.releases + count);
  return code;
}

PythonDevices& python_devices() {
  static auto& instance = *new PythonDevices;
  return instance;
}

void* find_device_call(const char* name) {
  return address_of_symbol(name);
}

} // namespace

void set_python_devices(PythonDevices devices) {
  python_devices() = std::move(devices);
}

std::set<std::string> features_of_device(const std::string& device) {
  if (const auto library = find_device_library(device, find_device_call))
    return qualified(device, library->features());
  const auto features =
      python_devices().features ? python_devices().features(device) : std::nullopt;
  return qualified(device, features.value_or(std::set<std::string>()));
}

DeviceCode load_device_code(std::span<const std::byte> bytes, const CodeNames& names) {
  const auto block = read_device_block(bytes);
  if (!block) return load_image_code(bytes, names);
  auto library = find_device_library(block->device, find_device_call);
  TORCH_CHECK(library || python_devices().load, "this process has no device ", block->device);
  auto code = library ? load_library_code(std::move(library), *block)
                      : python_devices().load(block->device, bytes);
  TORCH_CHECK(code.packs.size() == names.packs.size(), "device ", block->device, " loads ",
              code.packs.size(), " packs, where the code has ", names.packs.size());
  return code;
}

} // namespace torchmdla
