// What a process says of packages.
#pragma once

#include <string>

namespace torchmdla {

// The processor that packages' code is for (features_of in processor.h): `TORCHMDLA_PROCESSOR`, or
// "native", unless it is set.
std::string processor_setting();
void set_processor(const std::string& processor);

} // namespace torchmdla
