// Weights of TorchScript programs in mapped files, which leave the resident set once they are
// packed.
#pragma once

#include "base/private_mapping.h"

#include <torch/csrc/jit/api/module.h>

#include <memory>

namespace torchmdla {

class OpenFile;

using MappedWeights = std::shared_ptr<PrivateMapping>;

// Map the archive `file`, and let the weights of `module` that are equal to its records lie there.
// The module was loaded just now, so that nothing else has addresses of its weights.
MappedWeights map_weights(const torch::jit::Module& module, const OpenFile& file);

// Write the constants of the module's graphs to the empty file that is open as `descriptor`, and
// replace them by constants in a mapping of it. Other owners of their tensors keep these. Throw
// FileProblem if that is not possible.
MappedWeights map_constants(const torch::jit::Module& module, int descriptor);

} // namespace torchmdla
