// What this processor can run, by LLVM's names of features.
#pragma once

#include <set>
#include <string>

namespace torchmdla {

// The features of this processor that the system lets programs use, of those that LLVM's code
// generator makes instructions of.
const std::set<std::string>& host_features();

// What tells this processor from others, in hexadecimal; empty where it is of another kind.
std::string processor_identity();

// Whether a processor (as `features_of` takes it) converts float16 by instructions.
bool converts_f16(const std::string& processor);

// Those of `processor` (torchmdla/devices/cpu/processors.py): "native", or a level of x86-64, as
// "x86-64-v3". Throws where there is no such level, or this processor is none of that level.
std::set<std::string> features_of(const std::string& processor);

} // namespace torchmdla
