// Settings of this process for packages.
#pragma once

#include "ed25519.h"

#include <optional>
#include <string>
#include <vector>

namespace torchmdla {

// Return the processor whose code is used from packages (features_of in processor.h). The default
// is the environment variable `TORCHMDLA_PROCESSOR`, or "native" without it.
std::string processor_setting();
void set_processor(const std::string& processor);

// Return whether packages need a signature, also if the keys cannot be read.
bool are_signatures_required();

// Return the keys of which one must have signed a package, or nullopt if packages need no
// signature. By default, `TORCHMDLA_REQUIRE_SIGNATURE` lists the files of keys, separated by
// colons. Each call reads the files again. Throw FileProblem if one cannot be read or trusted
// (public_keys.h).
std::optional<std::vector<PublicKey>> required_keys();
// Set the files of keys; nullopt accepts packages without signatures. Throw c10::ValueError, and
// change nothing, if a file cannot be read or trusted.
void set_required_keys(std::optional<std::vector<std::string>> paths);

} // namespace torchmdla
