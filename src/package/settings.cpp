#include "settings.h"

#include "processor.h"
#include "support/forks.h"

#include <cstdlib>
#include <mutex>

namespace torchmdla {

namespace {

std::string of_environment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value && *value ? value : otherwise;
}

struct PackageSettings {
  std::mutex mutex;
  std::string processor = of_environment("TORCHMDLA_PROCESSOR", "native"); // guarded by mutex
};

PackageSettings& package_settings() {
  static auto& instance = *new PackageSettings;
  return instance;
}

} // namespace

std::string processor_setting() {
  const Guard guard(package_settings().mutex);
  return package_settings().processor;
}

void set_processor(const std::string& processor) {
  features_of(processor);
  const Guard guard(package_settings().mutex);
  package_settings().processor = processor;
}

} // namespace torchmdla
