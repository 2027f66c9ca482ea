// Memory for vectors.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>

namespace torchmdla {

struct FreeMemory {
  void operator()(void* memory) const { std::free(memory); }
};
using AlignedMemory = std::unique_ptr<void, FreeMemory>;

// 64-byte aligned, in huge pages where it is large and the system gives them. Null when there is
// none.
AlignedMemory allocate_aligned(size_t bytes);

} // namespace torchmdla
