#include "packaged.h"

#include "support/forks.h"

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

struct KnownPackage {
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
  std::list<KnownPackage> packages;                                 // guarded by mutex
  std::unordered_map<Structure, Packaged, FirstBytes> by_structure; // guarded by mutex

  // The functions below must be called with the mutex held.

  KnownPackage& known(Package package) {
    const auto found = std::ranges::find(
        packages, package.identity, [](const KnownPackage& one) { return one.package.identity; });
    if (found != packages.end()) return *found;
    for (const auto& one : package.specialisations)
      by_structure[one->structure].push_back(one);
    return packages.emplace_back(std::move(package));
  }

  // Remove and return the dead packages. The caller destroys them after it releases the lock.
  std::list<KnownPackage> take_dead() {
    std::list<KnownPackage> dead;
    for (auto next = packages.begin(); next != packages.end();) {
      const auto one = next++;
      if (one->is_dead()) dead.splice(dead.end(), packages, one);
    }
    for (const auto& one : dead)
      forget(one.package.specialisations);
    has_any.store(!packages.empty(), std::memory_order_release);
    return dead;
  }

  void forget(const Packaged& specialisations) {
    for (const auto& one : specialisations) {
      const auto found = by_structure.find(one->structure);
      std::erase(found->second, one);
      if (found->second.empty()) by_structure.erase(found);
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
  std::list<KnownPackage> dead;
  const Guard guard(registry.mutex);
  for (auto& one : registry.packages)
    if (one.package.identity != package.identity) one.paths.erase(path);
  registry.known(std::move(package)).add(path, std::move(program));
  dead = registry.take_dead();
}

void drop_dead_packages() {
  auto& registry = packaged_registry();
  std::list<KnownPackage> dead;
  const Guard guard(registry.mutex);
  dead = registry.take_dead();
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
