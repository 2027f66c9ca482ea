// What a process says of packages.
#pragma once

#include "ed25519.h"

#include <optional>
#include <string>
#include <vector>

namespace torchmdla {

// The processor that packages' code is for (features_of in processor.h): `TORCHMDLA_PROCESSOR`, or
// "native", unless it is set.
std::string processor_setting();
void set_processor(const std::string& processor);

// The keys of which a package must be signed by one; nullopt where none need be. Their files are
// `TORCHMDLA_REQUIRE_SIGNATURE`'s, between colons, unless they are set, and are read anew each
// time. Throws FileProblem where one cannot be read or trusted (public_keys.h).
std::optional<std::vector<PublicKey>> demanded_keys();
// Throws c10::ValueError where a file cannot be read or trusted; nothing is set then.
void set_demanded_keys(std::optional<std::vector<std::string>> paths);

} // namespace torchmdla
