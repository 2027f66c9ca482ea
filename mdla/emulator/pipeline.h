// Asynchronous inferences: a bounded queue and a thread that runs its jobs in order.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace mdla {

struct Job {
  std::vector<std::vector<float>> inputs, outputs;
  void* user = nullptr;
  std::string error; // "" if it succeeded
};

class Pipeline {
public:
  // `run` fills a job's outputs or its error, and does not throw.
  Pipeline(size_t buffers, std::function<void(Job&)> run);
  ~Pipeline();

  // Add a job. Return false if no buffer is free and `wait` is false, or if the pipeline ends.
  bool put(Job job, bool wait);
  // Get the oldest result. If there is none, wait for one; return false if `wait` is false or the
  // pipeline ends.
  bool get(Job& job, bool wait);
  bool busy();
  // End the pipeline. Waiting calls return false, and jobs that are not running yet are dropped.
  void end();

private:
  void work();

  const size_t buffers_;
  const std::function<void(Job&)> run_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> waiting_, done_;
  size_t held_ = 0; // buffers in use by waiting, running and finished jobs
  bool running_ = false, ends_ = false;
  std::thread worker_;
};

} // namespace mdla
