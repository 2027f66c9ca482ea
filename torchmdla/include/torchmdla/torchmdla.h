// torchmdla for programs in C++, without Python: link libtorchmdla ahead of libtorch, load it by
// dlopen, or preload it. It is on then, unless TORCHMDLA_ENABLE is 0.
//
// Programs of TorchScript that were saved by `torchmdla.save` or `torchmdla package` run their
// groups by the code in their files. There is no compiler in such a process: what the files do not
// cover runs in PyTorch's interpreter, and is counted.
#pragma once

#include <torch/csrc/jit/api/module.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace torchmdla {

struct Options {
  // Throw where a group has no code, or its code fails, instead of running it in PyTorch's
  // interpreter.
  bool strict = false;
  // Use code for any sizes.
  bool dynamic = true;
  // Input types (sizes, dtypes, integer values) that one group has code for at most.
  int64_t max_specialisations = 32;
  // The processor that code is for: "native", "x86-64-v2" to "x86-64-v4"; empty:
  // TORCHMDLA_PROCESSOR, or native.
  std::string processor;
  // Files of public keys (PEM, Ed25519), and folders of such: a package must be signed by the owner
  // of one of them. Empty: those of TORCHMDLA_REQUIRE_SIGNATURE, or no signature is demanded.
  std::vector<std::string> trusted_keys;
  // Bytes that code and packed weights of all groups may take before the least recently used are
  // taken out; 0: no limit. None: TORCHMDLA_MEMORY (`4G`), or no limit.
  std::optional<int64_t> memory_limit;
};

// Turns it on from the next call of any program on. Throws c10::ValueError where the processor is
// none, or not this one, a file of trusted_keys cannot be read or trusted, or memory_limit is
// negative.
void enable(const Options& options = {});

// Groups that exist run in PyTorch's interpreter from the next call on.
void disable();

bool is_enabled();

// Has PyTorch optimise `module.forward`, and its groups take over what packages have for them, so
// that the first call is as fast as later ones. `torch::jit::load` does so of a module with a
// package where the library is linked ahead of libtorch or preloaded.
void prepare(const torch::jit::Module& module);

// Makes the package of a file known to groups; false where the file has none. `torch::jit::load`
// does so by itself where the library is linked ahead of libtorch or preloaded, and its packages go
// with their modules; what this function took stays until another package comes from the same path.
// Throws where the file cannot be read as an archive. A package that is damaged, that another user
// may have written, or that is not signed where that is demanded, is refused and counted.
bool take_package_of(const std::string& file);

// Counters since the process began, as torchmdla.stats() has them: a JSON object.
std::string statistics_as_json();

// Every group that lives: its specialisations, how its calls ran, and why not by compiled code. A
// JSON array.
std::string explain_as_json();

} // namespace torchmdla

// The same function for a program that loads the library by dlopen and finds it by dlsym; call it
// before `torch::jit::load`. Returns 1 where the file has a package, 0 where it has none, and -1
// where it cannot be read.
extern "C" int torchmdla_take_package(const char* file);
