// Memory for vectors, and how much of it, and of code, the runtime holds.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace torchmdla {

// Bytes held.
struct MemoryUse {
  std::atomic<int64_t> packed{0};    // by what was packed of parameters
  std::atomic<int64_t> workspace{0}; // by the workspaces of all threads
  // By images as they are mapped, by the programs that executables keep for people, and by packages
  // but for weights, which are mapped from their files.
  std::atomic<int64_t> code{0};
  // How often packs or code were added. What was used since then is told by it from what was not.
  std::atomic<uint64_t> growths{0};
};
MemoryUse& memory_use();

// Bytes that count among `held` while it lives.
class CountedBytes {
public:
  CountedBytes(int64_t bytes, std::atomic<int64_t>& held) : bytes_(bytes), held_(held) {
    held_ += bytes_;
  }
  ~CountedBytes() { held_ -= bytes_; }
  CountedBytes(const CountedBytes&) = delete;
  CountedBytes& operator=(const CountedBytes&) = delete;

  int64_t bytes() const { return bytes_; }

private:
  const int64_t bytes_;
  std::atomic<int64_t>& held_;
};

// 64-byte aligned, in huge pages where it is large and the system gives them; it counts among
// `held` until it is freed. Throws when there is none.
std::shared_ptr<void> aligned_memory(int64_t bytes, std::atomic<int64_t>& held);

} // namespace torchmdla
