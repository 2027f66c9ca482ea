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
  State(Network target, double limit)
      : network(std::move(target)), seconds(limit), room(network.output_elements) {}

  const Network network;
  const double seconds; // 0: no limit
  const pid_t owner = getpid();

  std::mutex mutex; // guards the fields below
  std::condition_variable changed;
  bool is_exclusive = false;  // one call uses the network exclusively
  std::vector<uint64_t> room; // sizes of that call's outputs
  bool is_putting = false;    // an ie_putinput runs; they run in the order of their numbers
  uintptr_t last_number = 0;
  std::deque<Inference*> queued; // inferences that wait for their results
  size_t retained = 0;           // failed inferences whose results the library may still hold
  int64_t submitted = 0;         // inferences whose results callers fetch
  Clock::time_point progress;    // time of the last event
  std::string failure;           // reason why no more results are expected, or ""
  bool is_ending = false;

  // Return whether this process is a fork, which does not have the thread that fetches results.
  bool is_forked() const { return getpid() != owner; }
  bool is_idle() const { return !is_exclusive && !is_putting && queued.empty(); }

  void record_progress() {
    progress = Clock::now();
    changed.notify_all();
  }

  void finish_first(std::string fault) {
    auto& first = *queued.front();
    queued.pop_front();
    first.fault = std::move(fault);
    first.is_done = true;
    record_progress();
  }

  void fail(const std::string& why) {
    failure = why;
    while (!queued.empty())
      finish_first(why);
    changed.notify_all();
  }

  void fail_by_timeout() {
    std::ostringstream why;
    why << (is_exclusive ? "ie_run"
            : is_putting ? "ie_putinput"
                         : "ie_getresult")
        << ": no result within " << seconds << " seconds";
    fail(why.str());
  }

  // Wait until `ready()`, or until the network is lost. It is lost if nothing happens for
  // `seconds`.
  template <class Ready> void wait(std::unique_lock<std::mutex>& lock, Ready ready) {
    const auto most = std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(std::min(seconds, 1e9)));
    while (failure.empty() && !ready()) {
      const auto end = progress + most;
      if (seconds <= 0)
        changed.wait(lock);
      else if (Clock::now() < end)
        changed.wait_until(lock, end);
      else
        fail_by_timeout();
    }
  }

  // Wait as `wait` does, and throw Fault if the network is lost.
  template <class Ready> void enter(std::unique_lock<std::mutex>& lock, Ready ready) {
    if (is_forked() && !is_idle())
      throw Fault("ie_run: the process was forked while the network was in use");
    wait(lock, ready);
    if (!failure.empty()) throw Fault(failure);
  }

  void check_none_submitted(const char* function) const {
    if (submitted) throw Fault(std::string(function) + ": results of ie_putinput are outstanding");
  }

  void handle_result(uintptr_t number, std::string fault,
                     const std::vector<std::vector<float>>& results);
};

// Handle the result of inference `number`, or a fault without a number (0).
void Pipeline::State::handle_result(uintptr_t number, std::string fault,
                                    const std::vector<std::vector<float>>& results) {
  if (!failure.empty() || queued.empty()) return;
  auto& first = *queued.front();
  if (number && number < first.number) { // The inference has already failed.
    retained -= retained > 0;
    return;
  }
  if (number == first.number)
    retained = 0; // A retained result would have come before this one.
  else if (number || fault.empty())
    return fail("ie_getresult: the results are not in the order of the inputs");
  else if (++retained ==
           device_buffers) // The library may hold retained results in all its buffers.
    return fail(fault);
  if (fault.empty())
    for (size_t i = 0; i < results.size(); ++i)
      std::copy(results[i].begin(), results[i].end(), first.outputs[i]);
  finish_first(std::move(fault));
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
  auto results = arrays_of(network.output_elements);
  std::vector<float*> outputs;
  for (auto& array : results)
    outputs.push_back(array.data());
  std::unique_lock<std::mutex> lock(state->mutex);
  while (true) {
    state->changed.wait(lock, [&] { return state->is_ending || !state->queued.empty(); });
    if (state->is_ending || !state->failure.empty()) return;
    lock.unlock();
    auto elements = network.output_elements;
    void* user = nullptr;
    const int status = network.api.ie_getresult(network.cmem.get(), outputs.data(), elements.data(),
                                                outputs.size(), &user);
    auto fault = network.fault(status, "ie_getresult", elements);
    lock.lock();
    state->handle_result(reinterpret_cast<uintptr_t>(user), std::move(fault), results);
  }
}

Pipeline::Pipeline(Network network, double seconds)
    : state_(std::make_shared<State>(std::move(network), seconds)) {}

Pipeline::~Pipeline() {
  if (!collector_.joinable()) return;
  bool stuck = state_->is_forked();
  if (!stuck) {
    std::lock_guard<std::mutex> guard(state_->mutex);
    state_->is_ending = true;
    state_->changed.notify_all();
    stuck = !state_->failure.empty();
  }
  // If the library does not return, leave the thread and its arrays, which the library still uses.
  stuck ? collector_.detach() : collector_.join();
}

void Pipeline::run(const float* const* inputs, float* const* outputs) {
  Inference inference{inputs, outputs};
  {
    std::unique_lock<std::mutex> lock(state_->mutex);
    state_->check_none_submitted("ie_run");
    if (state_->is_forked() || state_->is_idle())
      return run_exclusively(lock, "ie_run", state_->network.api.ie_run, inputs, outputs);
  }
  start(inference);
  wait_for(inference);
  if (!inference.fault.empty()) throw Fault(inference.fault);
}

void Pipeline::run_software(const float* const* inputs, float* const* outputs) {
  std::unique_lock<std::mutex> lock(state_->mutex);
  state_->check_none_submitted("ie_run_sw");
  run_exclusively(lock, "ie_run_sw", state_->network.api.ie_run_sw, inputs, outputs);
}

void Pipeline::run_exclusively(std::unique_lock<std::mutex>& lock, const char* function,
                               decltype(Api::ie_run) call, const float* const* inputs,
                               float* const* outputs) {
  auto& state = *state_;
  const auto& network = state.network;
  state.enter(lock, [&] { return state.is_idle(); });
  state.is_exclusive = true;
  state.record_progress();
  lock.unlock();
  state.room = network.output_elements;
  const int status =
      call(network.cmem.get(), inputs, network.input_elements.data(), network.input_elements.size(),
           const_cast<float**>(outputs), state.room.data(), network.output_elements.size());
  const auto fault = network.fault(status, function, state.room);
  lock.lock();
  state.is_exclusive = false;
  state.record_progress();
  if (!fault.empty()) throw Fault(fault);
}

void Pipeline::start(Inference& inference) {
  auto& state = *state_;
  const auto& network = state.network;
  std::unique_lock<std::mutex> lock(state.mutex);
  if (state.is_forked()) // This process does not have the thread that fetches results.
    return run_exclusively(lock, "ie_run", network.api.ie_run, inference.inputs, inference.outputs);
  state.check_none_submitted("ie_putinput");
  // Limit the number of queued inferences, so that ie_putinput does not wait.
  state.enter(lock, [&] {
    return !state.is_exclusive && !state.is_putting && state.queued.size() < device_buffers;
  });
  if (!collector_.joinable()) collector_ = std::thread(collect_results, state_);
  state.is_putting = true;
  state.record_progress();
  inference.number = ++state.last_number;
  lock.unlock();
  const int status = network.api.ie_putinput(
      network.cmem.get(), inference.inputs, network.input_elements.data(),
      network.input_elements.size(), reinterpret_cast<void*>(inference.number));
  auto fault = status < 0 ? fault_of(network.api, "ie_putinput", network.cmem.get()) : "";
  lock.lock();
  state.is_putting = false;
  if (fault.empty()) fault = state.failure;
  if (fault.empty()) {
    inference.is_done = false;
    state.queued.push_back(&inference);
  }
  state.record_progress();
  if (!fault.empty()) throw Fault(fault);
}

void Pipeline::wait_for(Inference& inference) noexcept {
  std::unique_lock<std::mutex> lock(state_->mutex);
  state_->wait(lock, [&] { return inference.is_done; });
}

void Pipeline::submit(const float* const* inputs, void* user) {
  auto& state = *state_;
  const auto& network = state.network;
  {
    std::unique_lock<std::mutex> lock(state.mutex);
    state.enter(lock, [&] { return state.is_idle(); });
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
