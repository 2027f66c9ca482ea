#include "device_library.h"

#include "byte_reader.h"
#include "forks.h"
#include "sealed_block.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>
#include <utility>

namespace torchmdla {

namespace {

// These must equal the constants in torchmdla/compile_service/stored_code.py.
constexpr BlockFormat block_format{"torchmdla-code", 1, "a device's code"};
const std::string device_prefix = "device=", format_prefix = "format=";

struct Libraries {
  std::mutex mutex;
  std::once_flag environment_read;
  std::map<std::string, std::shared_ptr<const DeviceLibrary>> by_device; // guarded by mutex
};

Libraries& libraries() {
  static auto& instance = *new Libraries;
  return instance;
}

const mdla_device* open_device(const std::string& path) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library)
    throw DeviceLibraryError("the device library does not load: " + std::string(dlerror()));
  const auto open =
      reinterpret_cast<decltype(&mdla_open_device)>(dlsym(library, "mdla_open_device"));
  if (!open)
    throw DeviceLibraryError(
        path +
        " is not a device library: it has no function mdla_open_device (torchmdla/device.h)");
  const auto* const device = open(MDLA_DEVICE_API_VERSION);
  if (!device) throw DeviceLibraryError(path + ": the device does not work here");
  if (device->api_version != MDLA_DEVICE_API_VERSION)
    throw DeviceLibraryError(path + " is for version " + std::to_string(device->api_version) +
                             " of torchmdla/device.h, and this is version " +
                             std::to_string(MDLA_DEVICE_API_VERSION));
  if (!device->name || !device->format || !device->features || !device->load || !device->unload)
    throw DeviceLibraryError(path + ": a member of its mdla_device is null");
  return device;
}

} // namespace

std::optional<DeviceBlock> read_device_block(std::span<const std::byte> bytes) {
  const auto magic = std::as_bytes(std::span(block_format.magic));
  if (bytes.size() < magic.size() || !std::ranges::equal(bytes.first(magic.size()), magic))
    return std::nullopt;
  ByteReader reader(content_of(bytes, block_format));
  DeviceBlock block{reader.text(), {reader.text(), reader.text(), reader.text(), {}}, {}};
  block.names.packs = reader.list([&] { return reader.text(); });
  block.object_code = reader.bytes(reader.count());
  if (!reader.at_end()) throw BadBytes("a device's code is longer than its length field");
  return block;
}

LibraryCode::LibraryCode(std::shared_ptr<const DeviceLibrary> library,
                         std::span<const std::byte> object_code, const CodeNames& names)
    : library_(std::move(library)), pack_count_(names.packs.size()) {
  std::vector<const char*> packs;
  for (const auto& pack : names.packs)
    packs.push_back(pack.c_str());
  const mdla_artifact artifact{
      object_code.data(),  object_code.size(), names.entry.c_str(), names.workspace.c_str(),
      names.fault.c_str(), packs.data(),       packs.size(),        library_->find_call()};
  if (const auto* const problem = library_->device().load(&artifact, &code_))
    throw DeviceLibraryError("device " + library_->name() + " does not load its code: " + problem);
  if (!code_.entry || (pack_count_ != 0 && !code_.packs)) {
    library_->device().unload(&code_);
    throw DeviceLibraryError("device " + library_->name() +
                             " loads code without an entry or packs");
  }
}

LibraryCode::~LibraryCode() {
  library_->device().unload(&code_);
}

DeviceLibrary::DeviceLibrary(const std::string& path, mdla_find_call find_call)
    : device_(open_device(path)), find_call_(find_call) {}

std::set<std::string> DeviceLibrary::features() const {
  std::set<std::string> features{format_prefix + device_->format};
  for (const auto* feature = device_->features; *feature; ++feature)
    features.insert(*feature);
  return features;
}

std::shared_ptr<const DeviceLibrary> add_device_library(const std::string& path,
                                                        mdla_find_call find_call) {
  auto library = std::make_shared<const DeviceLibrary>(path, find_call);
  const ForkSafeLock guard(libraries().mutex);
  libraries().by_device[library->name()] = library;
  return library;
}

namespace {

void add_libraries_of_environment(mdla_find_call find_call) {
  const char* const paths = std::getenv("TORCHMDLA_DEVICE_LIBRARIES");
  std::istringstream stream(paths ? paths : "");
  for (std::string path; std::getline(stream, path, ':');)
    if (!path.empty()) add_device_library(path, find_call);
}

} // namespace

std::shared_ptr<const DeviceLibrary> find_device_library(const std::string& device,
                                                         mdla_find_call find_call) {
  auto& known = libraries();
  {
    const ForkGuard section;
    std::call_once(known.environment_read, [&] { add_libraries_of_environment(find_call); });
  }
  const ForkSafeLock guard(known.mutex);
  const auto entry = known.by_device.find(device);
  return entry == known.by_device.end() ? nullptr : entry->second;
}

std::vector<std::string> take_devices(std::set<std::string>& features) {
  std::vector<std::string> devices;
  for (auto next = features.lower_bound(device_prefix);
       next != features.end() && next->starts_with(device_prefix); next = features.erase(next))
    devices.push_back(next->substr(device_prefix.size()));
  return devices;
}

std::set<std::string> qualified(const std::string& device, const std::set<std::string>& features) {
  std::set<std::string> result;
  for (const auto& feature : features)
    result.insert(device + ":" + feature);
  return result;
}

} // namespace torchmdla
