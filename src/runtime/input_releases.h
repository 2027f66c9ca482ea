// Release of a call's inputs while its entry runs, each as soon as no later kernel reads it, and of
// the thread's workspace after a long call.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <chrono>
#include <cstddef>
#include <vector>

namespace torchmdla {

// An input that no kernel from number `kernel` on reads.
struct InputRelease {
  size_t kernel;
  size_t input;
};

// The releases of the call that this thread runs, while it lives.
class InputReleases {
public:
  // `releases` are in the order of their kernels.
  InputReleases(c10::ArrayRef<InputRelease> releases, c10::IValue* inputs);
  ~InputReleases();
  InputReleases(const InputReleases&) = delete;
  InputReleases& operator=(const InputReleases&) = delete;

  // Return the releases of the call that this thread runs, or null.
  static InputReleases* current();

  // Return whether `begin` would drop an input.
  bool is_due(size_t kernel) const {
    return !releases_.empty() && releases_.front().kernel <= kernel;
  }

  // Drop the inputs that are not read from this kernel on.
  void begin(size_t kernel);

private:
  c10::ArrayRef<InputRelease> releases_; // those that are left
  c10::IValue* const inputs_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  InputReleases* const outer_;
};

} // namespace torchmdla
