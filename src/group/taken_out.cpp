#include "taken_out.h"

#include <algorithm>

namespace torchmdla {

namespace {

constexpr size_t most_remembered = 32;

} // namespace

void TakenOut::add(const Specialisation& taken) {
  entries_.push_back({taken.signature, taken.pattern, Grace::Clock::now()});
  if (entries_.size() > most_remembered) entries_.pop_front();
}

std::optional<Grace::Clock::time_point> TakenOut::made_again(const Specialisation& made) {
  const auto found =
      std::ranges::find_if(entries_, [&](const Entry& entry) { return entry.is(made); });
  if (found == entries_.end()) return std::nullopt;
  const auto taken = found->at;
  entries_.erase(found);
  return taken;
}

std::vector<const Signature*> TakenOut::signatures() const {
  std::vector<const Signature*> found;
  for (const auto& entry : entries_)
    found.push_back(&entry.signature);
  return found;
}

std::optional<Pattern> TakenOut::pattern_for(const Signature& signature) const {
  Symbols values;
  for (const auto& entry : entries_)
    if (entry.pattern && entry.pattern->covers(signature, values)) {
      auto found = *entry.pattern;
      found.typical = signature;
      return found;
    }
  return std::nullopt;
}

bool TakenOut::Entry::is(const Specialisation& made) const {
  if (!pattern || !made.pattern) return !pattern && !made.pattern && signature == made.signature;
  Symbols values;
  return pattern->places == made.pattern->places && pattern->covers(made.signature, values);
}

} // namespace torchmdla
