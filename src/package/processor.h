// Features of processors, by their names in LLVM.
#pragma once

#include <set>
#include <string>

namespace torchmdla {

// Return whether `processor` (a name that `features_of` accepts) has instructions that convert
// float16.
bool converts_f16(const std::string& processor);

// Return the features of `processor`: "native", or a level such as "x86-64-v3"
// (torchmdla/devices/cpu/target/processors.py). Throw c10::ValueError if the level does not exist
// or this processor does not support it.
std::set<std::string> features_of(const std::string& processor);

} // namespace torchmdla
