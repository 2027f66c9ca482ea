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

// What callers and the thread that takes results share.
struct Pipeline::State {
  State(Network made, double limit)
      : network(std::move(made)), seconds(limit), room(network.output_elements) {}

  const Network network;
  const double seconds; // 0: any time
  const pid_t owner = getpid();

  std::mutex mutex; // guards what follows
  std::condition_variable changed;
  bool alone = false;         // one call has the network for itself
  std::vector<uint64_t> room; // of that call's outputs
  bool putting = false;       // an inference is being put: they are in the order of their numbers
  uintptr_t last_number = 0;
  std::deque<Inference*> queued; // those that are put and have no result
  size_t kept = 0;               // results that the library may keep although it has failed
  int64_t submitted = 0;         // inferences whose results callers fetch
  Clock::time_point progress;    // when something happened last
  std::string lost;              // why no more results are expected
  bool ends = false;

  // Other processes have no thread that takes results.
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

  // Until `ready()`. A network where nothing happens for too long is lost, and nobody waits for it.
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

  // As wait; throws where the network is lost.
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

// The result that came as `number`.
void Pipeline::State::take(uintptr_t number, std::string fault,
                           const std::vector<std::vector<float>>& made) {
  if (!lost.empty() || queued.empty()) return;
  auto& first = *queued.front();
  if (number && number < first.number) { // Of an inference that has failed before.
    kept -= kept > 0;
    return;
  }
  if (number == first.number)
    kept = 0; // It would have come before.
  else if (number || fault.empty())
    return lose("ie_getresult: the results are not in the order of the inputs");
  else if (++kept == device_buffers) // Of a fault whose result nobody knows.
    return lose(fault);
  if (fault.empty())
    for (size_t i = 0; i < made.size(); ++i)
      std::copy(made[i].begin(), made[i].end(), first.outputs[i]);
  settle_first(std::move(fault));
}

namespace {

// Arrays of these sizes.
std::vector<std::vector<float>> arrays_of(const std::vector<uint64_t>& elements) {
  std::vector<std::vector<float>> arrays;
  for (const auto count : elements)
    arrays.emplace_back(count);
  return arrays;
}

} // namespace

// The thread that takes results, as long as there are any to come.
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
  // What a library that does not return uses has to stay.
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
  if (state.forked()) // Here no thread takes results.
    return run_alone(lock, "ie_run", network.api.ie_run, inference.inputs, inference.outputs);
  state.check_none_submitted("ie_putinput");
  // So few that ie_putinput does not wait.
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
  // Without the lock: it may wait until a result is collected.
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
