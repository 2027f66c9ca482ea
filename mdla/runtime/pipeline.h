// Inferences of one network on the device, by any number of threads.
//
// A call that finds the network idle is one ie_run, with the caller's own arrays. Calls that meet,
// and the parts of a batch, go through ie_putinput: inputs are copied in while those before them
// are computed. One thread of the pipeline's takes results and hands each to its owner by the
// number that it was put with. That thread has arrays of its own, so that who has waited too long
// may leave.
#pragma once

#include "library.h"

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace torchmdla::mdla {

// Inferences that ie_putinput takes before a result is fetched (microndla.h).
inline constexpr size_t device_buffers = 2;

// What the library is given and gives back; the thread that takes results has it, too.
struct Network {
  const Api& api;
  std::shared_ptr<void> card; // a context that is to stay as long as this one
  std::shared_ptr<void> cmem;
  std::vector<uint64_t> input_elements, output_elements;

  // What went wrong in a call of `function`, by its status and the sizes that it wrote, or "".
  std::string fault(int status, const char* function, const std::vector<uint64_t>& elements) const;
};

// An inference on its way. Where it and the arrays are must stay until it is settled.
struct Inference {
  const float* const* inputs = nullptr;
  float* const* outputs = nullptr;
  bool settled = true;
  std::string fault{}; // "" when it went well
  uintptr_t number = 0;
};

// Every function throws Fault.
class Pipeline {
public:
  // `seconds`: without a result for so long, the network counts as lost; every call fails then.
  Pipeline(Network network, double seconds);
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // One inference.
  void run(const float* const* inputs, float* const* outputs);
  void run_software(const float* const* inputs, float* const* outputs);

  // One inference of several: starts it, when there is room, and waits for its end. No fault of
  // one is another's.
  void start(Inference& inference);
  void settle(Inference& inference) noexcept;

  // Inferences whose results the caller fetches, in the order of their inputs. There are no others
  // at the time.
  void submit(const float* const* inputs, void* user);
  void collect(float** outputs, void** user);

private:
  struct State;

  void run_alone(std::unique_lock<std::mutex>& lock, const char* function,
                 decltype(Api::ie_run) call, const float* const* inputs, float* const* outputs);
  static void collect_results(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
  std::thread collector_; // started with the first inference that is put
};

} // namespace torchmdla::mdla
