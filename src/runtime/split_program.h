// One entry for a program whose parts run on several devices (torchmdla/devices/heterogeneous).
#pragma once

#include "base/striped.h"
#include "codeimage/polynomial.h"
#include "packed.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace torchmdla {

// Counts of what parts of split programs do: runs of parts, and transfers between the memory of a
// device and that of the host, with their bytes. Threads write to separate cache lines.
struct DeviceCounts {
  int64_t parts = 0;
  int64_t transfers = 0;
  int64_t bytes = 0;
};
using StripedDeviceCounts = Striped<std::array<std::atomic<int64_t>, 3>>;

// Return the counts of each device that has run a part in this process.
std::map<std::string, DeviceCounts> device_counts();

class SplitProgram {
public:
  using Workspace = int64_t (*)(const int64_t* sizes);
  using Fault = const char* (*)();
  using Wait = int32_t (*)(void* result);

  // An argument or result of a part: buffer `index` of the program, or an intermediate in a slot.
  struct Value {
    bool is_intermediate;
    size_t index;
  };

  struct Part {
    std::string device;
    Entry entry;
    std::vector<Value> values; // arguments, then results
    std::vector<size_t> packs; // numbers among the program's packs
    int64_t workspace_bytes;
    Workspace workspace; // set for a dynamic program, else null
    Fault fault;         // null if the device has none
    void* context;       // first buffer in place of the workspace, if set
    Wait wait;           // null if the results are in host memory when the entry returns
    size_t results;      // number of the last values that are results
    size_t first_kernel; // number of its first kernel among the program's
    bool is_kernel;      // whether it does not begin kernels itself, and counts as one
    int64_t transfers;   // tensors that move between the device and the host
    Polynomial bytes;    // bytes that they have together
  };

  // Construct from the parts, in order, the bytes of the slots for intermediates, and the number of
  // symbols of a dynamic program.
  SplitProgram(std::vector<Part> parts, std::vector<Polynomial> slots, size_t symbols);
  ~SplitProgram();
  SplitProgram(const SplitProgram&) = delete;
  SplitProgram& operator=(const SplitProgram&) = delete;

  // Run the parts one after the other. Return the status of the first one that fails, or 0.
  int32_t run(void* const* buffers) const;

  // The entry of every split program. The first buffer is its context, the SplitProgram.
  static int32_t entry(void* const* buffers);

  // Return why an entry or pack of a split program has just failed on the calling thread.
  static const char* fault();

private:
  const std::vector<Part> parts_;
  const std::vector<Polynomial> slots_;
  const size_t symbols_;
  std::vector<const StripedDeviceCounts*> counts_; // by part
  const bool has_faults_;
};

} // namespace torchmdla
