// Features of this processor, by their LLVM names.
#pragma once

#include <set>
#include <string>

namespace torchmdla {

// Return the features of this processor that the system lets programs use, among those for which
// LLVM's code generator emits instructions. The first call asks the system for permission to use
// tile registers.
const std::set<std::string>& host_features();

// Return an identity of this processor, in hexadecimal. It is empty for other architectures than
// x86-64 and AArch64.
std::string processor_identity();

} // namespace torchmdla
