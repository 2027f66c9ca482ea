// A network on the device.
#pragma once

#include "binding.h"
#include "library.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace torchmdla::mdla {

// Who is told of the inputs of every run by an entry; null: nobody.
std::atomic<mdla_observer>& observer();

// Any thread may use it. Every function throws Fault.
class Context {
public:
  // Loads what ie_compile wrote to the file `binary`, on the card of the other contexts with these
  // flags.
  Context(const std::string& path, const char* const* flags, const char* binary,
          std::vector<mdla_port> inputs, std::vector<mdla_port> outputs, uint64_t tag);

  // One inference on an entry's buffers.
  void run(void* const* buffers);

  // The same on arrays in the order of the ports; by the reference software if `software`.
  void run(const float* const* inputs, float** outputs, bool software);

  void submit(const float* const* inputs, void* user);
  void collect(float** outputs, void** user);
  int info(const char* name, void* value, size_t size);

private:
  void init(const char* binary, void* card);
  void check(int status, const char* function);

  const Api& api_;
  // The first context of a card has to stay as long as others are linked to it.
  std::shared_ptr<void> card_;
  std::shared_ptr<void> cmem_;
  std::vector<mdla_port> inputs_, outputs_;
  const uint64_t tag_;
  const std::vector<uint64_t> input_elements_, output_elements_;
  std::mutex mutex_; // guards what follows: one inference at a time
  std::vector<uint64_t> room_;
  int64_t submitted_ = 0; // and not collected
};

} // namespace torchmdla::mdla
