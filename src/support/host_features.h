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

} // namespace torchmdla
