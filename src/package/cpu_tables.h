// Tables of the cpu device for programs without Python. The build generates their definitions from
// the Python tables (write_cpu_tables.py).
#pragma once

#include "fusion/device_table.h"

#include <c10/core/ScalarType.h>

#include <memory>
#include <span>

namespace torchmdla {

// Level of an architecture and all its features (torchmdla/devices/cpu/target/processors.py).
struct CpuLevel {
  const char* name;
  const char* features;
};
extern const std::span<const CpuLevel> cpu_levels;

// Return the operators (torchmdla/devices/cpu/target/ops.py) and the dtypes that groups may
// contain. `converts_f16`: whether the processor has instructions that convert float16.
std::shared_ptr<const DeviceTable> cpu_table(bool converts_f16);

} // namespace torchmdla
