#include "kineto.h"

#include "device_events.h"

#include <kineto/libkineto.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace torchmdla {

namespace {

using libkineto::ActivityLogger, libkineto::ActivityType;

const std::string profiler_name = "torchmdla";

// The row of the devices in a trace. It is larger than the numbers of processes, which have rows,
// too.
constexpr int32_t device_row = 5'000'700;

template <class Clock> int64_t nanoseconds_of() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
      .count();
}

// One trace of the profiler.
class TraceSession final : public libkineto::IActivityProfilerSession {
public:
  void start() override {
    recording_.emplace();
    status_ = libkineto::TraceStatus::RECORDING;
  }

  void stop() override {
    if (recording_) events_ = recording_->take();
    recording_.reset();
    status_ = libkineto::TraceStatus::READY;
  }

  std::vector<std::string> errors() override { return {}; }

  // The logger keeps pointers to the activities, which `getTraceBuffer` passes on afterwards.
  void processTrace(ActivityLogger& logger) override {
    buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
    buffer_->span = {events_.empty() ? 0 : to_profiler_time(events_.front().begin), 0,
                     profiler_name};
    buffer_->gpuOpCount = static_cast<int>(events_.size());
    for (const auto& event : events_) {
      buffer_->emplace_activity(buffer_->span, ActivityType::CONCURRENT_KERNEL, event.name);
      auto& activity = *buffer_->activities.back();
      activity.startTime = to_profiler_time(event.begin);
      activity.endTime = to_profiler_time(std::max(event.begin, event.end));
      activity.device = device_row;
      activity.resource = number_of(event.stream);
      activity.id = static_cast<int32_t>(buffer_->activities.size());
      activity.log(logger);
    }
    events_.clear();
  }

  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    if (streams_.empty()) return nullptr;
    return std::make_unique<libkineto::DeviceInfo>(
        libkineto::DeviceInfo{device_row, device_row, profiler_name, "devices"});
  }

  std::vector<libkineto::ResourceInfo> getResourceInfos() override {
    std::vector<libkineto::ResourceInfo> infos;
    for (size_t i = 0; i < streams_.size(); ++i)
      infos.push_back({static_cast<int64_t>(i), static_cast<int64_t>(i), device_row, streams_[i]});
    return infos;
  }

  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override {
    return std::move(buffer_);
  }

private:
  int64_t to_profiler_time(int64_t monotonic) const { return monotonic + offset_; }

  int32_t number_of(const std::string& stream) {
    const auto number = std::ranges::find(streams_, stream) - streams_.begin();
    if (static_cast<size_t>(number) == streams_.size()) streams_.push_back(stream);
    return static_cast<int32_t>(number);
  }

  // The profiler's times are those of the system's clock.
  const int64_t offset_ =
      nanoseconds_of<std::chrono::system_clock>() - nanoseconds_of<std::chrono::steady_clock>();
  std::optional<DeviceEventRecording> recording_;
  std::vector<DeviceEvent> events_;
  std::vector<std::string> streams_;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
};

class EventProfiler final : public libkineto::IActivityProfiler {
public:
  const std::string& name() const override { return profiler_name; }

  const std::set<ActivityType>& availableActivities() const override {
    static const std::set<ActivityType> types{ActivityType::CONCURRENT_KERNEL};
    return types;
  }

  std::unique_ptr<libkineto::IActivityProfilerSession>
  configure(const std::set<ActivityType>&, const libkineto::Config&) override {
    return std::make_unique<TraceSession>();
  }

  std::unique_ptr<libkineto::IActivityProfilerSession>
  configure(int64_t, int64_t, const std::set<ActivityType>& types,
            const libkineto::Config& config) override {
    return configure(types, config);
  }
};

} // namespace

void add_events_to_profiler() {
  static std::once_flag added;
  std::call_once(added, [] {
    libkineto::api().registerProfilerFactory([] { return std::make_unique<EventProfiler>(); });
  });
}

} // namespace torchmdla
