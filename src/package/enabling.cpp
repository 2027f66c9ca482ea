#include "cpu_tables.h"
#include "fusion/device_table.h"
#include "group/compilation_group.h"
#include "group/memory_limit.h"
#include "group/profiling.h"
#include "group/speed_check.h"
#include "processor.h"
#include "settings.h"
#include "torchmdla/torchmdla.h"

#include <cstdlib>
#include <string_view>

namespace torchmdla {

namespace {

bool is_requested() {
  const char* value = std::getenv("TORCHMDLA_ENABLE");
  return !value || (std::string_view(value) != "0" && *value != '\0');
}

// Loading the library enables it. If the Python package loads the library, it sets more options
// later.
[[maybe_unused]] const bool is_initialised = [] {
  if (is_requested()) enable();
  return true;
}();

} // namespace

void enable(const Options& options) {
  set_processor(options.processor.empty() ? processor_setting() : options.processor);
  if (!options.trusted_keys.empty()) set_required_keys(options.trusted_keys);
  add_device_table(cpu_table(converts_f16(processor_setting())));
  use_device_table("cpu");
  settings().strict = options.strict;
  settings().dynamic = options.dynamic;
  settings().max_specialisations = options.max_specialisations;
  set_memory_limit(options.memory_limit);
  set_check_speed(options.check_speed);
  settings().enabled = true;
  leave_out_profiling(true);
}

void disable() {
  settings().enabled = false;
  leave_out_profiling(false);
}

bool is_enabled() {
  return settings().enabled;
}

} // namespace torchmdla
