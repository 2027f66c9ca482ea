// Limit on the memory of specialisations: their code and their packed parameters (memory_use() in
// runtime/memory.h, without workspaces).
//
// If memory grows beyond the limit, specialisations of any group lose their packs, the least
// recently used first, until the rest fits. Specialisations that were used since that growth are
// excluded. Packs are most of the memory, and the next call makes them again. If that is not
// enough, specialisations are evicted in the same order. They are made again as in a first call,
// from the artifact in memory or on disk.
//
// A specialisation that is used again soon after its loss is then kept for the same period. If
// programs that are used in turn do not fit together, memory stays above the limit. Otherwise each
// call would pack again.
#pragma once

#include "specialisations.h"

#include <cstdint>
#include <optional>

namespace torchmdla {

constexpr KeepTime usual_keep_time{60};

// Set the limit in bytes; 0 means no limit. nullopt selects the value of TORCHMDLA_MEMORY (`4G`).
// Memory above the limit is evicted at once. Throw c10::ValueError if it is negative. The GIL must
// not be held.
void set_memory_limit(std::optional<int64_t> limit, KeepTime keep = usual_keep_time);
int64_t memory_limit();
KeepTime keep_time();

// Enforce the limit after memory grew. Evicted objects may belong to Python, so no lock may be held
// that another thread waits for with the GIL.
void enforce_memory_limit();

} // namespace torchmdla
