#include "settings.h"

#include "base/forks.h"
#include "base/open_file.h"
#include "processor.h"
#include "public_keys.h"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <mutex>
#include <sstream>
#include <utility>

namespace torchmdla {

namespace {

std::string of_environment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value && *value ? value : otherwise;
}

using KeyPaths = std::optional<std::vector<std::string>>;

KeyPaths key_paths_of_environment() {
  const char* value = std::getenv("TORCHMDLA_REQUIRE_SIGNATURE");
  if (!value) return std::nullopt;
  // An empty value still requires signatures, but trusts no key: the user meant to name keys and
  // made a mistake.
  std::vector<std::string> paths;
  std::istringstream stream(value);
  for (std::string path; std::getline(stream, path, ':');)
    if (!path.empty()) paths.push_back(path);
  return paths;
}

struct PackageSettings {
  std::mutex mutex;
  std::string processor = of_environment("TORCHMDLA_PROCESSOR", "native"); // guarded by `mutex`
  KeyPaths key_paths = key_paths_of_environment();                         // guarded by `mutex`
};

PackageSettings& package_settings() {
  static auto& instance = *new PackageSettings;
  return instance;
}

KeyPaths key_paths() {
  const ForkSafeLock guard(package_settings().mutex);
  return package_settings().key_paths;
}

} // namespace

std::string processor_setting() {
  const ForkSafeLock guard(package_settings().mutex);
  return package_settings().processor;
}

void set_processor(const std::string& processor) {
  features_of(processor);
  const ForkSafeLock guard(package_settings().mutex);
  package_settings().processor = processor;
}

bool are_signatures_required() {
  return key_paths().has_value();
}

std::optional<std::vector<PublicKey>> required_keys() {
  const auto paths = key_paths();
  if (!paths) return std::nullopt;
  return read_public_keys(*paths);
}

void set_required_keys(std::optional<std::vector<std::string>> paths) {
  try {
    if (paths) read_public_keys(*paths);
  } catch (const FileProblem& problem) {
    TORCH_CHECK_VALUE(false, "torchmdla: ", problem.what());
  }
  const ForkSafeLock guard(package_settings().mutex);
  package_settings().key_paths = std::move(paths);
}

} // namespace torchmdla
