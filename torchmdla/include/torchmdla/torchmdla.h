// torchmdla for C++ programs without Python: link libtorchmdla ahead of libtorch, load it by
// dlopen, or preload it. It is then enabled, unless TORCHMDLA_ENABLE is 0 or empty.
//
// TorchScript programs that were saved by `torchmdla.save` or `torchmdla package` run their groups
// with the code in their files. Such a process does not have a compiler: calls for which the file
// has no code run in PyTorch's interpreter, and are counted.
#pragma once

#include <torch/csrc/jit/api/module.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace torchmdla {

struct Options {
  // If a group has no code or its code fails, throw instead of running it in PyTorch's interpreter.
  bool strict = false;
  // Use code that supports any sizes.
  bool dynamic = true;
  // Limit on the input types (sizes, dtypes, integer values) for which one group has code.
  int64_t max_specialisations = 32;
  // Processor whose code is used: "native", "x86-64-v2" to "x86-64-v4". The empty string selects
  // TORCHMDLA_PROCESSOR, or "native" if that is not set.
  std::string processor;
  // Files of public keys (PEM, Ed25519), and folders of such files. The owner of one of the keys
  // must have signed a package. An empty list selects the files in TORCHMDLA_REQUIRE_SIGNATURE; if
  // that is not set, packages need no signature.
  std::vector<std::string> trusted_keys;
  // Limit on the bytes of code and packed weights of all groups. Above it, the least recently used
  // are evicted. 0 means no limit. nullopt selects TORCHMDLA_MEMORY (for example `4G`), or no limit
  // if that is not set.
  std::optional<int64_t> memory_limit;
  // Whether the first calls compare code with PyTorch's operators, which replace it where they are
  // faster. nullopt selects TORCHMDLA_CHECK_SPEED, or true if that is not set.
  std::optional<bool> check_speed;
};

// Enable compiled code, beginning with the next call of any program. Throw c10::ValueError if the
// processor is unknown or this one does not support it, if a file in trusted_keys cannot be read or
// trusted, or if memory_limit is negative.
void enable(const Options& options = {});

// Disable compiled code. Existing groups run in PyTorch's interpreter from their next call.
void disable();

bool is_enabled();

// Let PyTorch optimise `module.forward`, and load its groups' code from packages, so that the first
// call is as fast as later ones. If the library is linked ahead of libtorch or preloaded,
// `torch::jit::load` does this for every module with a package.
void prepare(const torch::jit::Module& module);

// Add the package in `file` to those that groups search. Return false if the file has no package.
// Throw if the file cannot be read as an archive.
//
// If the library is linked ahead of libtorch or preloaded, `torch::jit::load` does this itself, and
// the package lives as long as its module. A package that this function adds lives until another
// package comes from the same path. A package is refused and counted if it is damaged, if another
// user may have written it, or if it lacks a required signature.
bool take_package_of(const std::string& file);

// Return counters since the process started, as a JSON object like torchmdla.stats().
std::string statistics_as_json();

// Return a JSON array of all groups: their specialisations, how their calls ran, and the reasons
// for calls without compiled code.
std::string explain_as_json();

} // namespace torchmdla

// Add the package in `file`, like torchmdla::take_package_of. It is for programs that load the
// library by dlopen and find the function by dlsym; call it before `torch::jit::load`. Return 1 if
// the file has a package, 0 if it does not, and -1 if it cannot be read.
extern "C" int torchmdla_take_package(const char* file);
