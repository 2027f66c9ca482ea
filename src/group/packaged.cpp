#include "packaged.h"

#include "support/forks.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <unordered_map>

namespace torchmdla {

namespace {

struct FirstBytes {
  size_t operator()(const Structure& structure) const {
    size_t hash = 0;
    std::memcpy(&hash, structure.data(), sizeof hash);
    return hash;
  }
};

struct PackagedRegistry {
  std::atomic<bool> has_any{false};
  std::mutex mutex;
  std::unordered_map<Structure, Packaged, FirstBytes> by_structure; // guarded by mutex
};

// Never destroyed: groups may outlive what is destroyed when the process ends.
PackagedRegistry& packaged_registry() {
  static auto& instance = *new PackagedRegistry;
  return instance;
}

} // namespace

bool PackagedSpecialisation::covers(const Signature& other) const {
  if (!pattern) return signature == other;
  Symbols values;
  return pattern->covers(other, values) && sizes.extend(values);
}

void add_packaged(const Packaged& specialisations) {
  auto& registry = packaged_registry();
  const Guard guard(registry.mutex);
  for (const auto& one : specialisations)
    registry.by_structure[one->structure].push_back(one);
  if (!specialisations.empty()) registry.has_any.store(true, std::memory_order_release);
}

bool are_any_packaged() {
  return packaged_registry().has_any.load(std::memory_order_acquire);
}

Packaged find_packaged(const Structure& structure) {
  auto& registry = packaged_registry();
  const Guard guard(registry.mutex);
  const auto found = registry.by_structure.find(structure);
  return found == registry.by_structure.end() ? Packaged() : found->second;
}

} // namespace torchmdla
