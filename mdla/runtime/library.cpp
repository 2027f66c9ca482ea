#include "library.h"

#include "fault.h"

#include <dlfcn.h>

#include <cstring>
#include <map>
#include <mutex>
#include <vector>

namespace torchmdla::mdla {

namespace {

// Size of the buffer for messages and versions.
constexpr size_t text_bytes = 1 << 16;

std::string text_of(const Api& api, void* cmem, const char* name) {
  std::vector<char> text(text_bytes);
  if (api.ie_getinfo(cmem, name, text.data(), text.size()) != IE_STRING) return "";
  return {text.data(), strnlen(text.data(), text.size())};
}

// Throw Fault if the library reports a version other than IE_VERSION. It need not report one.
void check_version(const Api& api, const std::string& path) {
  const Cmem cmem(api.ie_create(), {api.ie_free});
  if (!cmem) throw Fault("ie_create: " + path + " gave no context");
  const auto version = text_of(api, cmem.get(), "version");
  const std::string expected = IE_VERSION;
  if (!version.empty() && version.compare(0, expected.size(), expected) != 0)
    throw Fault("ie_getinfo: " + path + " has version " + version + ", version " + expected +
                " is needed");
}

std::unique_ptr<const Api> open(const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) throw Fault(std::string("dlopen: ") + dlerror());
  auto api = std::make_unique<Api>();
  const auto find = [&](auto& function, const char* name) {
    void* address = dlsym(handle, name);
    if (!address) throw Fault(std::string(name) + ": " + path + " does not have this function");
    function = reinterpret_cast<std::decay_t<decltype(function)>>(address);
  };
#define FIND(name) find(api->name, #name)
  FIND(ie_create);
  FIND(ie_free);
  FIND(ie_setflag);
  FIND(ie_getinfo);
  FIND(ie_compile);
  FIND(ie_compile_vfp);
  FIND(ie_init);
  FIND(ie_run);
  FIND(ie_run_sw);
  FIND(ie_putinput);
  FIND(ie_getresult);
#undef FIND
  check_version(*api, path);
  return api;
}

} // namespace

const Api& library(const std::string& path) {
  // They are never destroyed, because contexts may be freed while the process exits.
  static auto& mutex = *new std::mutex;
  static auto& known = *new std::map<std::string, std::unique_ptr<const Api>>;
  std::lock_guard<std::mutex> guard(mutex);
  auto& api = known[path];
  if (!api) api = open(path);
  return *api;
}

Cmem create(const Api& api, const char* const* flags) {
  Cmem cmem(api.ie_create(), {api.ie_free});
  if (!cmem) throw Fault("ie_create: no context");
  for (; *flags; flags += 2)
    if (api.ie_setflag(cmem.get(), flags[0], flags[1]) < 0)
      throw Fault(fault_of(api,
                           (std::string("ie_setflag(") + flags[0] + ", " + flags[1] + ")").c_str(),
                           cmem.get()));
  return cmem;
}

std::string fault_of(const Api& api, const char* function, void* cmem) {
  const auto text = text_of(api, cmem, "error");
  return std::string(function) + ": " + (text.empty() ? "the library reported an error" : text);
}

} // namespace torchmdla::mdla
