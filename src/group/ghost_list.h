// Specialisations that the memory limit evicted from a group (memory_limit.h). They help to choose
// the next compilation, and show that a specialisation is used again.
#pragma once

#include "signature.h"
#include "specialisations.h"
#include "symbols.h"

#include <deque>
#include <optional>
#include <vector>

namespace torchmdla {

class GhostList {
public:
  // Remember an evicted specialisation. Only the latest few are remembered.
  void add(const Specialisation& evicted);

  // Return when a new specialisation was evicted before, and forget that. Return nullopt if it was
  // not.
  std::optional<UseRecord::Clock::time_point>
  time_of_eviction(const Specialisation& specialisation);

  // Return the signatures of calls that had code. The pointers are valid until the next change.
  std::vector<const Signature*> signatures() const;

  // Return the pattern of an evicted dynamic specialisation that covers `signature`, with
  // `signature` as its typical one. Return nullopt if no pattern covers it.
  std::optional<Pattern> pattern_for(const Signature& signature) const;

private:
  struct Entry {
    Signature signature;
    std::optional<Pattern> pattern;
    UseRecord::Clock::time_point evicted_at;

    bool is_of(const Specialisation& specialisation) const;
  };

  std::deque<Entry> entries_; // the latest last
};

} // namespace torchmdla
