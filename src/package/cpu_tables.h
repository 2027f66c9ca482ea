// What Python's tables say of the cpu device, for programs without Python: the build writes it
// (write_cpu_tables.py).
#pragma once

#include "fusion/device_table.h"

#include <c10/core/ScalarType.h>

#include <memory>
#include <span>

namespace torchmdla {

// A level of x86-64, and all its features (torchmdla/devices/cpu/processors.py).
struct CpuLevel {
  const char* name;
  const char* features;
};
extern const std::span<const CpuLevel> cpu_levels;

// The operators (torchmdla/devices/cpu/ops.py) and the dtypes that groups may hold on a processor
// that converts float16 or does not.
std::shared_ptr<const DeviceTable> cpu_table(bool converts_f16);

} // namespace torchmdla
