// What processors can run, by LLVM's names of features.
#pragma once

#include <set>
#include <string>

namespace torchmdla {

// Whether a processor (as `features_of` takes it) converts float16 by instructions.
bool converts_f16(const std::string& processor);

// The features of `processor` (torchmdla/devices/cpu/processors.py): "native", or a level of
// x86-64, as "x86-64-v3". Throws where there is no such level, or this processor is none of that
// level.
std::set<std::string> features_of(const std::string& processor);

} // namespace torchmdla
