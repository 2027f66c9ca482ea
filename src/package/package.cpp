#include "package.h"

#include "base/open_file.h"
#include "base/sealed_block.h"
#include "base/sha256.h"
#include "device_code.h"
#include "fusion/device_table.h"
#include "group/statistics.h"
#include "packaged_code.h"
#include "processor.h"
#include "runtime/exception_text.h"
#include "runtime/thread_quota.h"
#include "settings.h"
#include "signature.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

namespace torchmdla {

namespace {

// These must equal the constants in torchmdla/packages/format.py.
constexpr uint32_t package_version = 2;
constexpr BlockFormat index_format{"torchmdla-index", package_version, "the package's index"};
constexpr BlockFormat target_format{"torchmdla-target", package_version, "a package's target"};
const std::string folder = "torchmdla/";

struct PackageTarget {
  std::string name;
  std::set<std::string> features;   // of processor and devices, which its code needs
  std::vector<std::string> devices; // other than the processor
  int threads = 1;                  // number of threads that its kernels are divided for
  Digest digest;                    // digest of its block
};

// Remove the number of threads from features and return it; 1 if they do not have it.
int take_threads(std::set<std::string>& features) {
  static const std::string prefix = "threads=";
  const auto feature = features.lower_bound(prefix);
  if (feature == features.end() || !feature->starts_with(prefix)) return 1;
  int threads = 0;
  const auto digits = std::string_view(*feature).substr(prefix.size());
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), threads);
  if (error != std::errc() || end != digits.data() + digits.size() || threads < 1)
    throw BadBytes("invalid number of threads");
  features.erase(feature);
  return threads;
}

// Read a target's name. Allow only plain characters, because the name becomes part of record names
// and messages.
std::string name_of_target(ByteReader& reader) {
  constexpr size_t max_length = 64;
  auto name = reader.text();
  const bool is_plain = std::ranges::all_of(
      name, [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_' || c == '.'; });
  if (name.empty() || name.size() > max_length || !is_plain) throw BadBytes("invalid target name");
  return name;
}

std::vector<PackageTarget> targets_in(std::span<const std::byte> index) {
  ByteReader reader(content_of(index, index_format));
  return reader.list([&] {
    PackageTarget target;
    target.name = name_of_target(reader);
    const auto features = reader.list([&] { return reader.text(); });
    target.features = {features.begin(), features.end()};
    target.threads = take_threads(target.features);
    target.devices = take_devices(target.features);
    std::ranges::copy(reader.bytes(target.digest.size()), target.digest.begin());
    return target;
  });
}

// Return the features of the target that this process lacks, as text.
std::string missing_features(const PackageTarget& target, std::set<std::string> usable) {
  for (const auto& device : target.devices)
    usable.merge(features_of_device(device));
  std::vector<std::string> missing;
  std::ranges::set_difference(target.features, usable, std::back_inserter(missing));
  return c10::Join(", ", missing);
}

// Return the target with the most features among those whose features this process has. Of these,
// return the one for the most threads up to `threads`, or else for the fewest. Throw BadBytes if no
// target is usable.
const PackageTarget& best_of(const std::vector<PackageTarget>& targets,
                             const std::set<std::string>& processor, int threads) {
  const auto rank = [threads](const PackageTarget& target) {
    return std::pair(target.features.size(),
                     target.threads <= threads ? target.threads : -target.threads);
  };
  const PackageTarget* best = nullptr;
  std::string names;
  for (const auto& target : targets) {
    const auto missing = missing_features(target, processor);
    names += (names.empty() ? "" : ", ") + target.name;
    if (!target.devices.empty())
      names += " of device " + c10::Join(" and ", target.devices) + " (this process lacks " +
               missing + ")";
    if (missing.empty() && (!best || rank(target) > rank(*best))) best = &target;
  }
  if (!best) throw BadBytes("the package has no code for this processor, but for " + names);
  return *best;
}

// Warn if the groups of a program will not look for the target's code, because they are formed for
// another device.
void check_use(const PackageSource& source, const PackageTarget& target) {
  const auto in_use = current_device_table();
  if (!in_use || target.devices.empty() || std::ranges::count(target.devices, in_use->device) != 0)
    return;
  TORCH_WARN("torchmdla: ", source.name, " has code for device ", target.devices.front(),
             ", and groups are formed for ", in_use->device,
             ": torchmdla.enable(device=...) before the file is loaded selects it");
}

// Return the packed weights of `target`, or nullopt if they cannot be mapped or are not aligned.
// Code reads them directly from the mapping.
std::optional<FileRecord> weights_of(const PackageSource& source, const PackageTarget& target) {
  constexpr size_t alignment = 64;
  auto record = source.map ? source.map(folder + "weights/" + target.name) : std::nullopt;
  const bool is_aligned =
      record && reinterpret_cast<uintptr_t>(record->bytes.data()) % alignment == 0;
  return is_aligned ? record : std::nullopt;
}

PackagedList specialisations_in(const PackageTarget& target, const FileRecord& block,
                                const std::optional<FileRecord>& weights) {
  if (sha256(block.bytes) != target.digest)
    throw BadBytes("the package's target " + target.name + " is not the one that its index has");
  ByteReader reader(content_of(block.bytes, target_format));
  const auto content = std::make_shared<PackagedContent>(block.owner, block.bytes.size());
  if (weights) content->weights = weights->bytes, content->weights_owner = weights->owner;
  content->images = reader.list([&] { return reader.bytes(reader.count()); });
  const auto specialisations = reader.list([&] { return read_specialisation(reader, content); });
  if (!reader.at_end()) throw BadBytes("a package's target is longer than its length field");
  return specialisations;
}

// Return the package's identity: the digest of its index, which contains the digests of all blocks.
std::string identity_of(std::span<const std::byte> index) {
  const auto digest = sha256(index);
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

// Return the absolute path of `file`, or "" if it is null.
std::string path_of(const OpenFile* file) {
  return file ? std::filesystem::absolute(file->name()).lexically_normal().string() : "";
}

// Check that this process may trust the package's code. If signatures are required, one of the
// trusted keys must have signed it. Otherwise the owner of the file must be trusted.
void check_origin(const PackageSource& source, const FileRecord& index) {
  if (const auto keys = required_keys()) {
    const auto signature = source.read(folder + "signature");
    if (!signature) throw BadBytes("the package is not signed (python -m torchmdla sign)");
    check_signature(signature->bytes, index_of_package, index.bytes, *keys);
  } else if (source.file) {
    if (const auto problem = source.file->owner_problem(); !problem.empty())
      throw FileProblem(problem + ", or sign the package and demand that (docs/trust.md)");
  }
}

// Add the package of `source` and return the name of the target whose code is used.
std::string load_target(const PackageSource& source, const FileRecord& index) {
  check_origin(source, index);
  const auto targets = targets_in(index.bytes);
  limit_to_quota();
  const auto& target = best_of(targets, features_of(processor_setting()), at::get_num_threads());
  if (source.file) check_use(source, target);
  const auto block = source.read(folder + "targets/" + target.name);
  if (!block) throw BadBytes("the package lacks its target " + target.name);
  auto specialisations = specialisations_in(target, *block, weights_of(source, target));
  // Add it only after all checks, so that an undamaged copy of a refused file can be added later.
  add_package({identity_of(index.bytes), std::move(specialisations)}, path_of(source.file),
              source.program);
  return target.name;
}

} // namespace

bool load_package(const PackageSource& source) {
  try {
    const auto index = source.read(folder + "index");
    if (!index) return false;
    statistics().packages.loaded.count(load_target(source, *index));
  } catch (const std::exception& error) {
    const auto reason = text_of(error);
    statistics().packages.refused.count(reason);
    TORCH_WARN("torchmdla: ", source.name, ": ", reason, "; its program runs without the package");
  }
  return true;
}

} // namespace torchmdla
