#include "pipeline.h"

#include "fault.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <sstream>

namespace torchmdla::mdla {

using Clock = std::chrono::steady_clock;

std::string Network::fault(int status, const char* function,
                           const std::vector<uint64_t>& elements) const {
  if (status < 0) return fault_of(api, function, cmem.get());
  if (elements == output_elements) return "";
  return std::string(function) + ": the library wrote other sizes than it had announced";
}

// State that callers share with the thread that fetches results.
struct Pipeline::State {
  State(Network made, double limit)
      : network(std::move(made)), seconds(limit), room(network.output_elements) {}

  const Network network;
  const double seconds; // 0: no limit
  const pid_t owner = getpid();

  std::mutex mutex; // guards the fields below
  std::condition_variable changed;
  bool alone = false;         // one call uses the network exclusively
  std::vector<uint64_t> room; // sizes of that call's outputs
  bool putting = false;       // an ie_putinput runs; they run in the order of their numbers
  uintptr_t last_number = 0;
  std::deque<Inference*> queued; // inferences that wait for their results
  size_t kept = 0;               // failed inferences whose results the library may still hold
  int64_t submitted = 0;         // inferences whose results callers fetch
  Clock::time_point progress;    // time of the last event
  std::string lost;              // reason why no more results are expected, or ""
  bool ends = false;

  // Return whether this process is a fork, which does not have the thread that fetches results.
  bool forked() const { return getpid() != owner; }
  bool idle() const { return !alone && !putting && queued.empty(); }

  void progressed() {
    progress = Clock::now();
    changed.notify_all();
  }

  void settle_first(std::string fault) {
    auto& first = *queued.front();
    queued.pop_front();
    first.fault = std::move(fault);
    first.settled = true;
    progressed();
  }

  void lose(const std::string& why) {
    lost = why;
    while (!queued.empty())
      settle_first(why);
    changed.notify_all();
  }

  void lose_by_time() {
    std::ostringstream why;
    why << (alone     ? "ie_run"
            : putting ? "ie_putinput"
                      : "ie_getresult")
        << ": no result within " << seconds << " seconds";
    lose(why.str());
  }

  // Wait until `ready()`, or until the network is lost. It is lost if nothing happens for
  // `seconds`.
  template <class Ready> void wait(std::unique_lock<std::mutex>& lock, Ready ready) {
    const auto most = std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(std::min(seconds, 1e9)));
    while (lost.empty() && !ready()) {
      const auto end = progress + most;
      if (seconds <= 0)
        changed.wait(lock);
      else if (Clock::now() < end)
        changed.wait_until(lock, end);
      else
        lose_by_time();
    }
  }

  // Wait as `wait` does, and throw Fault if the network is lost.
  template <class Ready> void enter(std::unique_lock<std::mutex>& lock, Ready ready) {
    if (forked() && !idle())
      throw Fault("ie_run: the process was forked while the network was in use");
    wait(lock, ready);
    if (!lost.empty()) throw Fault(lost);
  }

  void check_none_submitted(const char* function) const {
    if (submitted) throw Fault(std::string(function) + ": results of ie_putinput are outstanding");
  }

  void take(uintptr_t number, std::string fault, const std::vector<std::vector<float>>& made);
};

// Handle the result of inference `number`, or a fault without a number (0).
void Pipeline::State::take(uintptr_t number, std::string fault,
                           const std::vector<std::vector<float>>& made) {
  if (!lost.empty() || queued.empty()) return;
  auto& first = *queued.front();
  if (number && number < first.number) { // The inference has already failed.
    kept -= kept > 0;
    return;
  }
  if (number == first.number)
    kept = 0; // A kept result would have come before this one.
  else if (number || fault.empty())
    return lose("ie_getresult: the results are not in the order of the inputs");
  else if (++kept == device_buffers) // The library may hold kept results in all its buffers.
    return lose(fault);
  if (fault.empty())
    for (size_t i = 0; i < made.size(); ++i)
      std::copy(made[i].begin(), made[i].end(), first.outputs[i]);
  settle_first(std::move(fault));
}

namespace {

// Return arrays with these numbers of elements.
std::vector<std::vector<float>> arrays_of(const std::vector<uint64_t>& elements) {
  std::vector<std::vector<float>> arrays;
  for (const auto count : elements)
    arrays.emplace_back(count);
  return arrays;
}

} // namespace

// Fetch results until the pipeline ends or the network is lost. It runs in its own thread.
void Pipeline::collect_results(const std::shared_ptr<State>& state) {
  const auto& network = state->network;
  auto made = arrays_of(network.output_elements);
  std::vector<float*> outputs;
  for (auto& array : made)
    outputs.push_back(array.data());
  std::unique_lock<std::mutex> lock(state->mutex);
  while (true) {
    state->changed.wait(lock, [&] { return state->ends || !state->queued.empty(); });
    if (state->ends || !state->lost.empty()) return;
    lock.unlock();
    auto elements = network.output_elements;
    void* user = nullptr;
    const int status = network.api.ie_getresult(network.cmem.get(), outputs.data(), elements.data(),
                                                outputs.size(), &user);
    auto fault = network.fault(status, "ie_getresult", elements);
    lock.lock();
    state->take(reinterpret_cast<uintptr_t>(user), std::move(fault), made);
  }
}

Pipeline::Pipeline(Network network, double seconds)
    : state_(std::make_shared<State>(std::move(network), seconds)) {}

Pipeline::~Pipeline() {
  if (!collector_.joinable()) return;
  bool stuck = state_->forked();
  if (!stuck) {
    std::lock_guard<std::mutex> guard(state_->mutex);
    state_->ends = true;
    state_->changed.notify_all();
    stuck = !state_->lost.empty();
  }
  // If the library does not return, leave the thread and its arrays, which the library still uses.
  stuck ? collector_.detach() : collector_.join();
}

void Pipeline::run(const float* const* inputs, float* const* outputs) {
  Inference inference{inputs, outputs};
  {
    std::unique_lock<std::mutex> lock(state_->mutex);
    state_->check_none_submitted("ie_run");
    if (state_->forked() || state_->idle())
      return run_alone(lock, "ie_run", state_->network.api.ie_run, inputs, outputs);
  }
  start(inference);
  settle(inference);
  if (!inference.fault.empty()) throw Fault(inference.fault);
}

void Pipeline::run_software(const float* const* inputs, float* const* outputs) {
  std::unique_lock<std::mutex> lock(state_->mutex);
  state_->check_none_submitted("ie_run_sw");
  run_alone(lock, "ie_run_sw", state_->network.api.ie_run_sw, inputs, outputs);
}

void Pipeline::run_alone(std::unique_lock<std::mutex>& lock, const char* function,
                         decltype(Api::ie_run) call, const float* const* inputs,
                         float* const* outputs) {
  auto& state = *state_;
  const auto& network = state.network;
  state.enter(lock, [&] { return state.idle(); });
  state.alone = true;
  state.progressed();
  lock.unlock();
  state.room = network.output_elements;
  const int status =
      call(network.cmem.get(), inputs, network.input_elements.data(), network.input_elements.size(),
           const_cast<float**>(outputs), state.room.data(), network.output_elements.size());
  const auto fault = network.fault(status, function, state.room);
  lock.lock();
  state.alone = false;
  state.progressed();
  if (!fault.empty()) throw Fault(fault);
}

void Pipeline::start(Inference& inference) {
  auto& state = *state_;
  const auto& network = state.network;
  std::unique_lock<std::mutex> lock(state.mutex);
  if (state.forked()) // This process does not have the thread that fetches results.
    return run_alone(lock, "ie_run", network.api.ie_run, inference.inputs, inference.outputs);
  state.check_none_submitted("ie_putinput");
  // Limit the number of queued inferences, so that ie_putinput does not wait.
  state.enter(
      lock, [&] { return !state.alone && !state.putting && state.queued.size() < device_buffers; });
  if (!collector_.joinable()) collector_ = std::thread(collect_results, state_);
  state.putting = true;
  state.progressed();
  inference.number = ++state.last_number;
  lock.unlock();
  const int status = network.api.ie_putinput(
      network.cmem.get(), inference.inputs, network.input_elements.data(),
      network.input_elements.size(), reinterpret_cast<void*>(inference.number));
  auto fault = status < 0 ? fault_of(network.api, "ie_putinput", network.cmem.get()) : "";
  lock.lock();
  state.putting = false;
  if (fault.empty()) fault = state.lost;
  if (fault.empty()) {
    inference.settled = false;
    state.queued.push_back(&inference);
  }
  state.progressed();
  if (!fault.empty()) throw Fault(fault);
}

void Pipeline::settle(Inference& inference) noexcept {
  std::unique_lock<std::mutex> lock(state_->mutex);
  state_->wait(lock, [&] { return inference.settled; });
}

void Pipeline::submit(const float* const* inputs, void* user) {
  auto& state = *state_;
  const auto& network = state.network;
  {
    std::unique_lock<std::mutex> lock(state.mutex);
    state.enter(lock, [&] { return state.idle(); });
    ++state.submitted;
  }
  // Call it without the lock: it may wait until a result is collected.
  if (network.api.ie_putinput(network.cmem.get(), inputs, network.input_elements.data(),
                              network.input_elements.size(), user) >= 0)
    return;
  std::lock_guard<std::mutex> guard(state.mutex);
  --state.submitted;
  throw Fault(fault_of(network.api, "ie_putinput", network.cmem.get()));
}

void Pipeline::collect(float** outputs, void** user) {
  const auto& network = state_->network;
  auto elements = network.output_elements;
  const int status =
      network.api.ie_getresult(network.cmem.get(), outputs, elements.data(), elements.size(), user);
  if (status < 0) throw Fault(fault_of(network.api, "ie_getresult", network.cmem.get()));
  std::lock_guard<std::mutex> guard(state_->mutex);
  --state_->submitted;
}

} // namespace torchmdla::mdla
