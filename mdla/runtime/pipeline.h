// Inferences of one network on the device, by any number of threads.
//
// If the network is idle, a call is one ie_run with the caller's own arrays. Concurrent calls, and
// the parts of a batch, use ie_putinput: their inputs are copied to the device while earlier ones
// are computed. A thread of the pipeline fetches the results. It finds the caller of each result by
// the number that was passed to ie_putinput. The thread has its own arrays, so a caller that has
// waited too long may return.
#pragma once

#include "library.h"

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace torchmdla::mdla {

// Number of inferences that ie_putinput accepts before a result is fetched (microndla.h).
inline constexpr size_t device_buffers = 2;

// Network and the sizes of its arrays. The thread that fetches results shares its ownership.
struct Network {
  const Api& api;
  std::shared_ptr<void> card; // a context that must live as long as this one
  std::shared_ptr<void> cmem;
  std::vector<uint64_t> input_elements, output_elements;

  // Return the fault of a call of `function`, or "". `status` is its result, and `elements` are the
  // sizes that it wrote.
  std::string fault(int status, const char* function, const std::vector<uint64_t>& elements) const;
};

// Running inference. Its address and its arrays must stay valid until it is done.
struct Inference {
  const float* const* inputs = nullptr;
  float* const* outputs = nullptr;
  bool is_done = true;
  std::string fault{}; // "" if it succeeded
  uintptr_t number = 0;
};

// Pipeline of one network. Every function throws Fault, except for `wait_for`.
class Pipeline {
public:
  // `seconds`: if no result comes for this time, the network is lost, and every call fails. 0 means
  // no limit.
  Pipeline(Network network, double seconds);
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // Run one inference.
  void run(const float* const* inputs, float* const* outputs);
  void run_software(const float* const* inputs, float* const* outputs);

  // Start an inference when there is room, and wait for its end. A fault of one inference does not
  // affect the others.
  void start(Inference& inference);
  void wait_for(Inference& inference) noexcept;

  // Start an inference, and fetch the result of the oldest one that was started here. While results
  // are outstanding, the functions above throw.
  void submit(const float* const* inputs, void* user);
  void collect(float** outputs, void** user);

private:
  struct State;

  void run_exclusively(std::unique_lock<std::mutex>& lock, const char* function,
                       decltype(Api::ie_run) call, const float* const* inputs,
                       float* const* outputs);
  static void collect_results(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
  std::thread collector_; // started with the first ie_putinput
};

} // namespace torchmdla::mdla
