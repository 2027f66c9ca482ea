// PyTorch's profiling runs of TorchScript programs.
//
// PyTorch's executor runs a program once to see its types. Where one of them requires grad, it
// makes differentiable graphs of the operators that it has a symbolic derivative of, and no pass
// sees the others: every convolution. Groups decide at each call what to do about gradients, so
// programs have groups of all that the device takes, and the executor is kept from looking.
#pragma once

namespace torchmdla {

// Whether programs that run for the first time do without a profiling run.
void leave_out_profiling(bool leave_out);

// For as long as one of these lives, programs are profiled, on all threads.
class WithProfiling {
public:
  WithProfiling();
  ~WithProfiling();
  WithProfiling(const WithProfiling&) = delete;
  WithProfiling& operator=(const WithProfiling&) = delete;
};

} // namespace torchmdla
