// Memory for vectors, and the amounts of memory and code that the runtime holds.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace torchmdla {

// Numbers of bytes held.
struct MemoryUse {
  std::atomic<int64_t> packed{0};    // packed parameters
  std::atomic<int64_t> workspace{0}; // workspaces of all threads
  // Images as they are mapped, programs that executables keep for debugging, and packages. Weights
  // of packages are excluded, because they are mapped from their files.
  std::atomic<int64_t> code{0};
  // Number of times that packs or code were added. The time of a last use is measured in it.
  std::atomic<uint64_t> allocation_epoch{0};
};
MemoryUse& memory_use();

// Bytes that are included in `counter` while it lives.
class CountedBytes {
public:
  CountedBytes(int64_t bytes, std::atomic<int64_t>& counter) : bytes_(bytes), counter_(counter) {
    counter_ += bytes_;
  }
  ~CountedBytes() { counter_ -= bytes_; }
  CountedBytes(const CountedBytes&) = delete;
  CountedBytes& operator=(const CountedBytes&) = delete;

  int64_t bytes() const { return bytes_; }

private:
  const int64_t bytes_;
  std::atomic<int64_t>& counter_;
};

// Return memory that was freed to the system. The allocator keeps some of it after large programs
// were transformed or weights were copied.
void return_freed_memory();

// Return 64-byte aligned memory, in huge pages if it is large and the system supports them. It
// counts in `counter` until it is freed. Throw if there is not enough memory.
std::shared_ptr<void> aligned_memory(int64_t bytes, std::atomic<int64_t>& counter);

} // namespace torchmdla
