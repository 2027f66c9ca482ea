// Random number generators of the acap device, based on the CPU's.
#pragma once

#include <ATen/core/Generator.h>

namespace torchmdla::acap {

// Return the device's default generator. It uses the stream of the CPU's default generator.
const at::Generator& default_generator();

// Return a new generator with its own stream.
at::Generator make_generator();

// Return the CPU generator that draws for `generator`, which may be of either device.
at::Generator cpu_generator(const at::Generator& generator);

} // namespace torchmdla::acap
