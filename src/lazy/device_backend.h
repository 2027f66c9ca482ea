// Backend of PyTorch's lazy device that uses torchmdla's compiler.
#pragma once

#include "computation.h"

#include "torchmdla/lazy_backend.h"

#include <functional>
#include <memory>
#include <string>

namespace torchmdla::lazy {

// Make torchmdla compile and run the graphs of PyTorch's device `lazy`, for `device`. Further calls
// may change the device. Throw c10::Error if the device's table is not loaded.
void initialise(const std::string& device);

// Set a backend that compiles in place of torchmdla's groups. Null removes it.
void set_backend(std::shared_ptr<LazyBackend> backend);

// Return the last computation that was passed to the compiler, or null.
std::shared_ptr<const Computation> latest_computation();

// Return the computation of pending tensors without running it. Throw c10::ValueError if one of
// them is not a lazy tensor, or if none is pending.
std::shared_ptr<const Computation> pending_computation(const std::vector<at::Tensor>& tensors);

// Counters of the lazy device in this process.
struct Counts {
  int64_t graphs; // graphs passed to the compiler
  int64_t runs;   // runs of all graphs
};
Counts counts();
void reset_counts();

// Set whether computations are printed when they are compiled and run.
void set_verbose(bool on);

// Set the function that returns a computation's text for humans.
void set_text_writer(std::function<std::string(std::shared_ptr<const Computation>)> writer);

} // namespace torchmdla::lazy
