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

// Return 64-byte aligned memory, in huge pages if it is large and the system supports them. Return
// null if there is not enough memory.
AlignedMemory allocate_aligned(size_t bytes);

// Ask the system for huge pages where the memory contains whole ones. The first write to a small
// page costs more than clearing it.
void use_huge_pages(void* memory, size_t bytes);

} // namespace torchmdla
