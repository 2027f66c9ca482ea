// A limit on what specialisations hold: code, and what it packed of parameters (memory_use() in
// runtime/memory.h, but for workspaces).
//
// Where memory grows beyond the limit, specialisations of any group lose what they packed, the
// least recently used first, until what is left fits; but for those that were used since it grew.
// Packs are most of the memory, and the next call makes them anew. Only where that is not enough
// are specialisations taken out, in the same order. Those are made again, of the artifact that is
// in memory or on disk, as in a first call.
//
// What is wanted again soon after it was taken is kept for as long then: where programs that are
// used in turn do not fit together, memory stays above the limit, and no call after another packs.
#pragma once

#include "specialisations.h"

#include <cstdint>
#include <optional>

namespace torchmdla {

constexpr KeepTime usual_keep_time{60};

// In bytes, 0 for none; TORCHMDLA_MEMORY says it (`4G`) unless it is set. Above it, what can be is
// taken out at once. Throws c10::ValueError where it is negative. The GIL must not be held.
void set_memory_limit(std::optional<int64_t> limit, KeepTime keep = usual_keep_time);
int64_t memory_limit();
KeepTime keep_time();

// Bytes that are limited.
int64_t limited_memory();

// After memory grew. What is taken out may be Python's: no lock is held that anybody waits for with
// the GIL.
void keep_to_memory_limit();

} // namespace torchmdla
