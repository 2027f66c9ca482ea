// Random numbers of the acap device: the CPU's.
#pragma once

#include <ATen/core/Generator.h>

namespace torchmdla::acap {

// Of the device: the CPU's default generator's stream.
const at::Generator& default_generator();

// A further one, with a stream of its own.
at::Generator make_generator();

// The one that draws for `generator`, which may be of either device.
at::Generator cpu_generator(const at::Generator& generator);

} // namespace torchmdla::acap
