// Events of devices: what ran in a stream, and when. They are recorded while a profiler or a report
// asks for them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace torchmdla {

struct DeviceEvent {
  std::string stream, name;
  int64_t begin, end; // nanoseconds of the monotonic clock (std::chrono::steady_clock)
};

// Recording of the events of all threads, while the object lives.
class DeviceEventRecording {
public:
  DeviceEventRecording();
  ~DeviceEventRecording();
  DeviceEventRecording(const DeviceEventRecording&) = delete;
  DeviceEventRecording& operator=(const DeviceEventRecording&) = delete;

  // Return the events since the last call, in the order in which they were recorded, at most a
  // million.
  std::vector<DeviceEvent> take();

private:
  friend void record_event(const DeviceEvent& event);

  std::vector<DeviceEvent> events_; // guarded by a mutex of all recordings
};

// Return whether a recording lives.
bool are_events_recorded();

// Add an event to all recordings.
void record_event(const DeviceEvent& event);

} // namespace torchmdla
