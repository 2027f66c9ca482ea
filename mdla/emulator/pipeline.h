// Asynchronous inferences: a bounded queue and the thread that works it off, in order.
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
  std::string error; // "" when it went well
};

class Pipeline {
public:
  // run fills a job's outputs or its error, and throws nothing.
  Pipeline(size_t buffers, std::function<void(Job&)> run);
  ~Pipeline();

  // False: no buffer is free, and `wait` is false; or the pipeline ends.
  bool put(Job job, bool wait);
  // The oldest result; false as for put.
  bool get(Job& job, bool wait);
  bool busy();
  // Whoever waits returns false, and what waits to be run is dropped.
  void end();

private:
  void work();

  const size_t buffers_;
  const std::function<void(Job&)> run_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> waiting_, done_;
  size_t held_ = 0; // buffers in use: waiting, running and done
  bool running_ = false, ends_ = false;
  std::thread worker_;
};

} // namespace mdla
