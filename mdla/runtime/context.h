// Network on the device.
#pragma once

#include "binding.h"
#include "pipeline.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torchmdla::mdla {

// Thread-safe network on the device. Every function throws Fault.
class Context {
public:
  // Load the file `binary`, which ie_compile wrote, on the card of the other contexts with these
  // flags.
  Context(const std::string& path, const char* const* flags, const char* binary,
          std::vector<mdla_port> inputs, std::vector<mdla_port> outputs, unsigned parts,
          double seconds);

  // Run a call of an entry on its buffers.
  void run(void* const* buffers);

  // Return the pipeline, whose functions expect arrays in the order of the ports.
  Pipeline& pipeline() { return *pipeline_; }

  int info(const char* name, void* value, size_t size);

private:
  void init(const char* binary, void* card);
  void run_parts(const float* const* inputs, float* const* outputs);

  const Api& api_;
  std::shared_ptr<void> cmem_;
  const std::vector<mdla_port> inputs_, outputs_;
  const unsigned parts_;
  std::optional<Pipeline> pipeline_;
};

} // namespace torchmdla::mdla
