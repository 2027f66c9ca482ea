#include "device_events.h"

#include "base/forks.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

namespace torchmdla {

namespace {

constexpr size_t most_events = 1'000'000;

struct EventRecordings {
  std::atomic<int> count{0};
  std::mutex mutex;
  std::vector<DeviceEventRecording*> alive; // guarded by mutex
};

EventRecordings& event_recordings() {
  static auto& instance = *new EventRecordings;
  return instance;
}

} // namespace

DeviceEventRecording::DeviceEventRecording() {
  auto& recordings = event_recordings();
  const ForkSafeLock guard(recordings.mutex);
  recordings.alive.push_back(this);
  ++recordings.count;
}

DeviceEventRecording::~DeviceEventRecording() {
  auto& recordings = event_recordings();
  const ForkSafeLock guard(recordings.mutex);
  std::erase(recordings.alive, this);
  --recordings.count;
}

std::vector<DeviceEvent> DeviceEventRecording::take() {
  const ForkSafeLock guard(event_recordings().mutex);
  return std::exchange(events_, {});
}

bool are_events_recorded() {
  return event_recordings().count.load(std::memory_order_relaxed) != 0;
}

void record_event(const DeviceEvent& event) {
  auto& recordings = event_recordings();
  const ForkSafeLock guard(recordings.mutex);
  for (auto* const recording : recordings.alive)
    if (recording->events_.size() < most_events) recording->events_.push_back(event);
}

} // namespace torchmdla
