// PyTorch's lazy device with torchmdla's compiler behind it.
#pragma once

#include "computation.h"

#include "torchmdla/lazy_backend.h"

#include <functional>
#include <memory>
#include <string>

namespace torchmdla::lazy {

// Makes torchmdla what compiles and runs the graphs of PyTorch's device `lazy`, for `device`. May
// be called again, with another device too. Throws c10::Error where the device's table is not
// loaded.
void initialise(const std::string& device);

// What compiles instead; null: nothing.
void set_backend(std::shared_ptr<LazyBackend> backend);

// The last computation that came to be compiled; null if none did.
std::shared_ptr<const Computation> latest_computation();

// The computation of pending tensors, without running it. Throws c10::ValueError where one of them
// is no lazy tensor, or none is pending.
std::shared_ptr<const Computation> pending_computation(const std::vector<at::Tensor>& tensors);

// What the lazy device did in this process.
struct Counts {
  int64_t graphs; // that came to be compiled
  int64_t runs;   // of any of them
};
Counts counts();
void reset_counts();

// A switch: prints what comes to be compiled and run.
void set_verbose(bool on);

// `writer` gives a computation's text for people.
void set_text_writer(std::function<std::string(std::shared_ptr<const Computation>)> writer);

} // namespace torchmdla::lazy
