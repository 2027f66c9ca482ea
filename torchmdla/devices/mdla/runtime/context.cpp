#include "context.h"

#include "fault.h"

#include <array>
#include <map>

namespace torchmdla::mdla {

namespace {

// The context that others with the same library and flags are linked to.
struct Cards {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<void>> by_flags;
};

Cards& cards() {
  static auto& instance = *new Cards;
  return instance;
}

std::string card_of(const std::string& path, const char* const* flags) {
  auto key = path;
  for (; *flags; ++flags)
    key.append(1, '\0').append(*flags);
  return key;
}

std::vector<uint64_t> elements_of(const std::vector<mdla_port>& ports) {
  std::vector<uint64_t> elements;
  for (const auto& port : ports)
    elements.push_back(port.elements);
  return elements;
}

// Pointers for one call. Without an allocation for as many arrays as networks have.
template <class Pointer> class Pointers {
public:
  Pointers(const std::vector<mdla_port>& ports, void* const* buffers) {
    if (ports.size() > few_.size()) many_.resize(ports.size());
    for (size_t i = 0; i < ports.size(); ++i)
      data()[i] = static_cast<Pointer>(buffers[ports[i].position]);
  }
  Pointer* data() { return many_.empty() ? few_.data() : many_.data(); }

private:
  std::array<Pointer, 16> few_;
  std::vector<Pointer> many_;
};

} // namespace

Context::Context(const std::string& path, const char* const* flags, const char* binary,
                 std::vector<mdla_port> inputs, std::vector<mdla_port> outputs, uint64_t tag)
    : api_(library(path)), cmem_(create(api_, flags)), inputs_(std::move(inputs)),
      outputs_(std::move(outputs)), tag_(tag), input_elements_(elements_of(inputs_)),
      output_elements_(elements_of(outputs_)) {
  // Held while loading: what is linked to a card must find it ready.
  std::lock_guard<std::mutex> guard(cards().mutex);
  auto& card = cards().by_flags[card_of(path, flags)];
  card_ = card.lock();
  init(binary, card_.get());
  if (!card_) card = cmem_;
}

void Context::init(const char* binary, void* card) {
  unsigned count = 0, *dimensions = nullptr;
  uint64_t** shapes = nullptr;
  if (!api_.ie_init(cmem_.get(), binary, &count, &dimensions, &shapes, card))
    throw Fault(fault_of(api_, "ie_init", cmem_.get()));
  if (count != outputs_.size())
    throw Fault("ie_init: the library has " + std::to_string(count) + " outputs, the group " +
                std::to_string(outputs_.size()));
  for (unsigned i = 0; i < count; ++i) {
    uint64_t elements = 1;
    for (unsigned d = 0; d < dimensions[i]; ++d)
      elements *= shapes[i][d];
    if (elements != outputs_[i].elements)
      throw Fault("ie_init: output " + std::to_string(i) + " has " + std::to_string(elements) +
                  " elements, the group's " + std::to_string(outputs_[i].elements));
  }
}

std::atomic<mdla_observer>& observer() {
  static std::atomic<mdla_observer> instance{nullptr};
  return instance;
}

void Context::run(void* const* buffers) {
  Pointers<const float*> inputs(inputs_, buffers);
  Pointers<float*> outputs(outputs_, buffers);
  if (const auto told = observer().load(std::memory_order_acquire)) told(tag_, inputs.data());
  run(inputs.data(), outputs.data(), false);
}

void Context::run(const float* const* inputs, float** outputs, bool software) {
  const char* function = software ? "ie_run_sw" : "ie_run";
  const auto call = software ? api_.ie_run_sw : api_.ie_run;
  std::lock_guard<std::mutex> guard(mutex_);
  if (submitted_) throw Fault(std::string(function) + ": results of ie_putinput are outstanding");
  room_ = output_elements_;
  check(call(cmem_.get(), inputs, input_elements_.data(), inputs_.size(), outputs, room_.data(),
             outputs_.size()),
        function);
  if (room_ != output_elements_)
    throw Fault(std::string(function) + ": the library wrote other sizes than it had announced");
}

void Context::submit(const float* const* inputs, void* user) {
  {
    std::lock_guard<std::mutex> guard(mutex_);
    ++submitted_;
  }
  // Without the lock: it may wait until a result is collected.
  if (api_.ie_putinput(cmem_.get(), inputs, input_elements_.data(), inputs_.size(), user) >= 0)
    return;
  std::lock_guard<std::mutex> guard(mutex_);
  --submitted_;
  throw Fault(fault_of(api_, "ie_putinput", cmem_.get()));
}

void Context::collect(float** outputs, void** user) {
  auto elements = output_elements_;
  const int status =
      api_.ie_getresult(cmem_.get(), outputs, elements.data(), outputs_.size(), user);
  check(status, "ie_getresult");
  std::lock_guard<std::mutex> guard(mutex_);
  --submitted_;
}

int Context::info(const char* name, void* value, size_t size) {
  return api_.ie_getinfo(cmem_.get(), name, value, size);
}

void Context::check(int status, const char* function) {
  if (status < 0) throw Fault(fault_of(api_, function, cmem_.get()));
}

} // namespace torchmdla::mdla
