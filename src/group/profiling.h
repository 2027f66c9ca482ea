// PyTorch's profiling runs of TorchScript programs.
//
// PyTorch's executor runs a program once to observe its types. If one of them requires grad, it
// makes differentiable graphs of the operators with a symbolic derivative. No pass sees the others,
// such as every convolution. Groups decide about gradients at each call. Profiling is therefore
// left out, so that groups contain all operators that the device supports.
#pragma once

namespace torchmdla {

// Set whether programs that run for the first time skip the profiling run.
void leave_out_profiling(bool leave_out);

// Scope in which programs are profiled, on all threads.
class WithProfiling {
public:
  WithProfiling();
  ~WithProfiling();
  WithProfiling(const WithProfiling&) = delete;
  WithProfiling& operator=(const WithProfiling&) = delete;
};

} // namespace torchmdla
