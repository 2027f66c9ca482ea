#include "context.h"

#include "fault.h"

#include <array>
#include <map>
#include <mutex>

namespace torchmdla::mdla {

namespace {

// First context of each combination of library and flags. Later contexts are linked to its card.
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

// Pointers to the arrays of one inference. Up to 16 arrays need no allocation.
template <class Pointer> class Pointers {
public:
  Pointers(const std::vector<mdla_port>& ports, void* const* buffers) {
    resize(ports.size());
    for (size_t i = 0; i < ports.size(); ++i)
      data()[i] = static_cast<Pointer>(buffers[ports[i].position]);
  }
  // Select the elements of the inference `part` in the arrays of a call.
  Pointers(const std::vector<mdla_port>& ports, const Pointer* arrays, size_t part) {
    resize(ports.size());
    for (size_t i = 0; i < ports.size(); ++i)
      data()[i] = arrays[i] + part * ports[i].elements;
  }
  Pointer* data() { return many_.empty() ? few_.data() : many_.data(); }

private:
  void resize(size_t size) {
    if (size > few_.size()) many_.resize(size);
  }

  std::array<Pointer, 16> few_;
  std::vector<Pointer> many_;
};

// Running inference on a part of a call's arrays. The destructor waits for its end.
class Part {
public:
  Part(Pipeline& pipeline, Pointers<const float*> inputs, Pointers<float*> outputs)
      : pipeline_(pipeline), inputs_(std::move(inputs)), outputs_(std::move(outputs)),
        inference_{inputs_.data(), outputs_.data()} {
    pipeline_.start(inference_);
  }
  ~Part() { pipeline_.wait_for(inference_); }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

  void finish() {
    pipeline_.wait_for(inference_);
    if (!inference_.fault.empty()) throw Fault(inference_.fault);
  }

private:
  Pipeline& pipeline_;
  Pointers<const float*> inputs_;
  Pointers<float*> outputs_;
  Inference inference_;
};

} // namespace

Context::Context(const std::string& path, const char* const* flags, const char* binary,
                 std::vector<mdla_port> inputs, std::vector<mdla_port> outputs, unsigned parts,
                 double seconds)
    : api_(library(path)), cmem_(create(api_, flags)), inputs_(std::move(inputs)),
      outputs_(std::move(outputs)), parts_(parts) {
  // Keep the lock while loading: a context that is linked to a card needs a card that is ready.
  std::lock_guard<std::mutex> guard(cards().mutex);
  auto& first = cards().by_flags[card_of(path, flags)];
  auto card = first.lock();
  init(binary, card.get());
  if (!card) first = cmem_;
  pipeline_.emplace(
      Network{api_, std::move(card), cmem_, elements_of(inputs_), elements_of(outputs_)}, seconds);
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

void Context::run(void* const* buffers) {
  Pointers<const float*> inputs(inputs_, buffers);
  Pointers<float*> outputs(outputs_, buffers);
  if (parts_ == 1)
    pipeline_->run(inputs.data(), outputs.data());
  else
    run_parts(inputs.data(), outputs.data());
}

void Context::run_parts(const float* const* inputs, float* const* outputs) {
  std::array<std::optional<Part>, device_buffers> started;
  for (size_t part = 0; part < parts_ + started.size(); ++part) {
    auto& place = started[part % started.size()];
    if (place) place->finish();
    place.reset();
    if (part < parts_)
      place.emplace(*pipeline_, Pointers<const float*>(inputs_, inputs, part),
                    Pointers<float*>(outputs_, outputs, part));
  }
}

int Context::info(const char* name, void* value, size_t size) {
  return api_.ie_getinfo(cmem_.get(), name, value, size);
}

} // namespace torchmdla::mdla
