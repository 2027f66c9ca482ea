// Memory of a session, which is reused from call to call.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

namespace torchmdla::native {

// Allocator with a free list for each class of sizes. It takes memory from the system in chunks,
// and returns it when it is destroyed. So a program that needs the same blocks again and again
// allocates no more. One thread at a time may use it.
class Arena {
public:
  static constexpr size_t alignment = 64;

  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Return a block that is aligned to 64 bytes. Throw std::bad_alloc if the system refuses memory.
  void* allocate(size_t bytes);

  // Take back a block of this many bytes.
  void release(void* block, size_t bytes) noexcept;

  // Return the bytes that were taken from the system.
  size_t bytes() const { return bytes_; }

private:
  struct Free {
    Free* next;
  };
  struct FreeMemory {
    void operator()(std::byte* memory) const noexcept;
  };
  using Chunk = std::unique_ptr<std::byte, FreeMemory>;

  // Four classes for each power of two.
  static constexpr size_t classes = 4 * 64;
  static size_t class_of(size_t bytes);
  static size_t size_of(size_t number);

  std::byte* carve(size_t bytes);

  std::array<Free*, classes> free_{};
  std::vector<Chunk> chunks_;
  std::byte* next_ = nullptr;
  size_t left_ = 0;
  size_t bytes_ = 0;
};

} // namespace torchmdla::native
