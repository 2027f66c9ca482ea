#include "pipeline.h"

namespace mdla {

Pipeline::Pipeline(size_t buffers, std::function<void(Job&)> run)
    : buffers_(buffers), run_(std::move(run)), worker_([this] { work(); }) {}

Pipeline::~Pipeline() {
  end();
  worker_.join();
}

void Pipeline::end() {
  std::lock_guard lock(mutex_);
  ends_ = true;
  changed_.notify_all();
}

bool Pipeline::put(Job job, bool wait) {
  std::unique_lock lock(mutex_);
  auto free = [this] { return ends_ || held_ < buffers_; };
  if (wait) changed_.wait(lock, free);
  if (ends_ || held_ >= buffers_) return false;
  ++held_;
  waiting_.push_back(std::move(job));
  changed_.notify_all();
  return true;
}

bool Pipeline::get(Job& job, bool wait) {
  std::unique_lock lock(mutex_);
  if (wait) changed_.wait(lock, [this] { return ends_ || !done_.empty(); });
  if (done_.empty()) return false;
  job = std::move(done_.front());
  done_.pop_front();
  --held_;
  changed_.notify_all();
  return true;
}

bool Pipeline::busy() {
  std::lock_guard lock(mutex_);
  return running_ || !waiting_.empty();
}

void Pipeline::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || !waiting_.empty(); });
    if (ends_) return;
    Job job = std::move(waiting_.front());
    waiting_.pop_front();
    running_ = true;
    lock.unlock();
    run_(job);
    lock.lock();
    running_ = false;
    done_.push_back(std::move(job));
    changed_.notify_all();
  }
}

} // namespace mdla
