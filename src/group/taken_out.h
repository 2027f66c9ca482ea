// What a group had, and what was taken out of it for the limit on memory (memory_limit.h): as far
// as that says what is to be made next, and that it is wanted again.
#pragma once

#include "signature.h"
#include "specialisations.h"
#include "symbols.h"

#include <deque>
#include <optional>
#include <vector>

namespace torchmdla {

class TakenOut {
public:
  // The latest few are remembered.
  void add(const Specialisation& taken);

  // When what is made was taken out, which is forgotten then; nullopt where it was not.
  std::optional<Grace::Clock::time_point> made_again(const Specialisation& made);

  // Of calls that there was code for. Valid until the next change.
  std::vector<const Signature*> signatures() const;

  // What a dynamic one took, for this signature in the place of the one that it was made for;
  // nullopt where none took it.
  std::optional<Pattern> pattern_for(const Signature& signature) const;

private:
  struct Entry {
    Signature signature;
    std::optional<Pattern> pattern;
    Grace::Clock::time_point at;

    bool is(const Specialisation& made) const;
  };

  std::deque<Entry> entries_; // the latest last
};

} // namespace torchmdla
