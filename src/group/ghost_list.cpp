#include "ghost_list.h"

#include <algorithm>

namespace torchmdla {

namespace {

constexpr size_t max_entries = 32;

} // namespace

void GhostList::add(const Specialisation& evicted) {
  entries_.push_back({evicted.signature, evicted.pattern, UseRecord::Clock::now()});
  if (entries_.size() > max_entries) entries_.pop_front();
}

std::optional<UseRecord::Clock::time_point>
GhostList::time_of_eviction(const Specialisation& specialisation) {
  const auto match = std::ranges::find_if(
      entries_, [&](const Entry& entry) { return entry.is_of(specialisation); });
  if (match == entries_.end()) return std::nullopt;
  const auto evicted_at = match->evicted_at;
  entries_.erase(match);
  return evicted_at;
}

std::vector<const Signature*> GhostList::signatures() const {
  std::vector<const Signature*> result;
  for (const auto& entry : entries_)
    result.push_back(&entry.signature);
  return result;
}

std::optional<Pattern> GhostList::pattern_for(const Signature& signature) const {
  Symbols values;
  for (const auto& entry : entries_)
    if (entry.pattern && entry.pattern->covers(signature, values)) {
      auto result = *entry.pattern;
      result.typical = signature;
      return result;
    }
  return std::nullopt;
}

bool GhostList::Entry::is_of(const Specialisation& specialisation) const {
  if (!pattern || !specialisation.pattern)
    return !pattern && !specialisation.pattern && signature == specialisation.signature;
  Symbols values;
  return pattern->places == specialisation.pattern->places &&
         pattern->covers(specialisation.signature, values);
}

} // namespace torchmdla
