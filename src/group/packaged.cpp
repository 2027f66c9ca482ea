#include "packaged.h"

#include "base/forks.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <list>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

namespace torchmdla {

namespace {

struct FirstBytes {
  size_t operator()(const Structure& structure) const {
    size_t hash = 0;
    std::memcpy(&hash, structure.data(), sizeof hash);
    return hash;
  }
};

struct RegisteredPackage {
  Package package;
  std::vector<ProgramLife> programs;
  std::set<std::string> paths; // files whose programs are not known

  bool is_dead() const {
    return paths.empty() &&
           std::ranges::all_of(programs, [](const auto& life) { return life.expired(); });
  }

  void add(const std::string& path, std::optional<ProgramLife> program) {
    std::erase_if(programs, [](const auto& life) { return life.expired(); });
    if (program)
      programs.push_back(std::move(*program));
    else
      paths.insert(path);
  }
};

struct PackagedRegistry {
  std::atomic<bool> has_any{false};
  std::mutex mutex;
  std::list<RegisteredPackage> packages;                                // guarded by mutex
  std::unordered_map<Structure, PackagedList, FirstBytes> by_structure; // guarded by mutex

  // The functions below must be called with the mutex held.

  RegisteredPackage& find_or_add(Package package) {
    const auto match =
        std::ranges::find(packages, package.identity,
                          [](const RegisteredPackage& entry) { return entry.package.identity; });
    if (match != packages.end()) return *match;
    for (const auto& specialisation : package.specialisations)
      by_structure[specialisation->structure].push_back(specialisation);
    return packages.emplace_back(std::move(package));
  }

  // Remove and return the dead packages. The caller destroys them after it releases the lock.
  std::list<RegisteredPackage> remove_dead() {
    std::list<RegisteredPackage> dead;
    for (auto next = packages.begin(); next != packages.end();) {
      const auto entry = next++;
      if (entry->is_dead()) dead.splice(dead.end(), packages, entry);
    }
    for (const auto& entry : dead)
      unregister(entry.package.specialisations);
    has_any.store(!packages.empty(), std::memory_order_release);
    return dead;
  }

  void unregister(const PackagedList& specialisations) {
    for (const auto& specialisation : specialisations) {
      const auto match = by_structure.find(specialisation->structure);
      std::erase(match->second, specialisation);
      if (match->second.empty()) by_structure.erase(match);
    }
  }
};

// Return the registry. It is never destroyed, because groups may outlive statics at process exit.
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

void add_package(Package package, const std::string& path, std::optional<ProgramLife> program) {
  auto& registry = packaged_registry();
  std::list<RegisteredPackage> dead;
  const ForkSafeLock guard(registry.mutex);
  for (auto& entry : registry.packages)
    if (entry.package.identity != package.identity) entry.paths.erase(path);
  registry.find_or_add(std::move(package)).add(path, std::move(program));
  dead = registry.remove_dead();
}

void drop_dead_packages() {
  auto& registry = packaged_registry();
  std::list<RegisteredPackage> dead;
  const ForkSafeLock guard(registry.mutex);
  dead = registry.remove_dead();
}

bool are_any_packaged() {
  return packaged_registry().has_any.load(std::memory_order_acquire);
}

PackagedList find_packaged(const Structure& structure) {
  auto& registry = packaged_registry();
  const ForkSafeLock guard(registry.mutex);
  const auto match = registry.by_structure.find(structure);
  return match == registry.by_structure.end() ? PackagedList() : match->second;
}

} // namespace torchmdla
