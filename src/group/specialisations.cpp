#include "specialisations.h"

#include <algorithm>
#include <ranges>
#include <utility>

namespace torchmdla {

namespace {

// Return the newest entry for which `predicate` is true. Later entries are more likely to be used.
template <class Predicate>
const Specialisation* newest(const std::vector<Specialisations::Entry>& entries,
                             Predicate predicate) {
  for (const auto& entry : entries | std::views::reverse)
    if (predicate(*entry)) return entry.get();
  return nullptr;
}

} // namespace

const Specialisation* Specialisations::find(const Signature& signature) const {
  return newest(fixed_, [&](const Specialisation& specialisation) {
    return specialisation.signature == signature;
  });
}

const Specialisation* Specialisations::find_dynamic(const Signature& signature,
                                                    Symbols& values) const {
  return newest(dynamic_, [&](const Specialisation& specialisation) {
    return specialisation.pattern->covers(signature, values) && specialisation.sizes.extend(values);
  });
}

const Specialisation* Specialisations::newest_split() const {
  return newest(fixed_, [](const Specialisation& specialisation) {
    return specialisation.outcome == Specialisation::Outcome::split;
  });
}

Specialisations Specialisations::with(Entry entry) const {
  auto result = *this;
  auto& entries = entry->pattern ? result.dynamic_ : result.fixed_;
  entries.push_back(std::move(entry));
  return result;
}

Specialisations Specialisations::without(const Entry& entry) const {
  auto result = *this;
  std::erase(entry->pattern ? result.dynamic_ : result.fixed_, entry);
  return result;
}

} // namespace torchmdla
