// Fuzzes the reader of packages: whatever their records hold, they are refused with a reason, or
// bound to a group. Only the code is not run, which may do anything.
#include "fuzzing.h"
#include "sealing.h"

#include "base/aligned_memory.h"
#include "group/statistics.h"
#include "package/package.h"
#include "package/packaged_code.h"
#include "package/public_keys.h"
#include "package/signature.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <map>
#include <memory>
#include <string>

namespace {

using namespace torchmdla;

// As src/package/package.cpp and signature.cpp have them.
constexpr BlockFormat kIndexFormat{"torchmdla-index", 2, "the package's index"};
constexpr BlockFormat kTargetFormat{"torchmdla-target", 2, "a package's target"};
constexpr BlockFormat kSignatureFormat{"torchmdla-sig", 1, "a signature"};
constexpr size_t kWeightBytes = 1 << 14;

// Every other of whose nodes is a matrix, the others are vectors.
class Group final : public Subgraph {
public:
  explicit Group(size_t first) : first_(first) {}
  void run(torch::jit::Stack&) override {}
  Record run_and_record(torch::jit::Stack&) override { return {}; }
  bool run_differentiable(torch::jit::Stack&) override { return false; }
  std::optional<size_t> num_outputs() const override { return std::nullopt; }
  std::optional<Structure> structure(const std::string&,
                                     const std::vector<int64_t>&) const override {
    return std::nullopt;
  }
  at::Tensor constant(size_t node, std::optional<size_t> element) const override {
    TORCH_CHECK(node < 64 && !element, "the group does not have this constant");
    return at::ones(std::vector<int64_t>(1 + (node + first_) % 2, 3));
  }
  bool conditions_hold(const Record&) const override { return true; }
  Division divide(const std::vector<size_t>&, const std::vector<int64_t>&) override { return {}; }

private:
  const size_t first_;
};

std::span<const std::byte> octets(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::span<const std::byte> weights() {
  static const auto memory = [] {
    auto allocated = allocate_aligned(kWeightBytes);
    std::memset(allocated.get(), 0, kWeightBytes);
    return allocated;
  }();
  return {static_cast<const std::byte*>(memory.get()), kWeightBytes};
}

bool takes(const std::map<std::string, std::string>& records) {
  const auto program = std::make_shared<int>();
  const ReadRecord read = [&](const std::string& name) -> std::optional<FileRecord> {
    const auto found = records.find(name);
    if (found == records.end()) return std::nullopt;
    return FileRecord{octets(found->second), nullptr};
  };
  const ReadRecord map = [](const std::string&) { return FileRecord{weights(), nullptr}; };
  statistics().packages.reset();
  load_package({read, map, "a program", nullptr, program});
  return statistics().packages.loaded.total() > 0;
}

std::string text(std::string_view characters) {
  return fuzzing::as_bytes(uint64_t{characters.size()}).append(characters);
}

// Looks at what a call looks at before the code runs.
void bind(std::string_view bytes, const Group& group) {
  const auto tensor = at::ones({2, 3});
  const std::vector<c10::IValue> inputs{tensor, std::vector<at::Tensor>{tensor}, 2.0, int64_t{3}};
  Signature signature;
  for (const auto& input : inputs)
    append_signature(input, signature);
  ByteReader reader(octets(bytes));
  const auto content = std::make_shared<PackagedContent>(nullptr, 0);
  content->weights = weights();
  content->images = reader.list([&] { return reader.bytes(reader.count()); });
  for (const auto& one : reader.list([&] { return read_specialisation(reader, content); })) {
    one->covers(signature);
    one->covers(one->signature);
    if (const auto executable = one->load(group, inputs.size())) executable->accepts(inputs);
  }
}

bool target_accepts(std::string_view bytes) {
  const auto target = fuzzing::sealed(kTargetFormat, bytes);
  const auto index = fuzzing::as_bytes(uint64_t{1}) + text("native") +
                     fuzzing::as_bytes(uint64_t{0}) + fuzzing::digest_of(target);
  if (!takes({{"torchmdla/index", fuzzing::sealed(kIndexFormat, index)},
              {"torchmdla/targets/native", target}}))
    return false;
  for (const Group& group : {Group(0), Group(1)})
    try {
      bind(bytes, group);
      return true;
    } catch (const std::exception&) { // as a group refuses it
    }
  return false;
}

bool index_accepts(std::string_view bytes) {
  return takes({{"torchmdla/index", fuzzing::sealed(kIndexFormat, bytes)},
                {"torchmdla/targets/native", fuzzing::sealed(kTargetFormat, "")}});
}

// Of blocks that are not sealed anew.
bool block_accepts(std::string_view bytes) {
  return takes({{"torchmdla/index", std::string(bytes)}});
}

bool signature_accepts(std::string_view bytes) {
  try {
    const auto record = fuzzing::sealed(kSignatureFormat, bytes);
    check_signature(octets(record), index_of_package, octets("content"), {PublicKey{}});
    return true;
  } catch (const BadBytes&) {
    return false;
  }
}

bool key_accepts(std::string_view bytes) {
  try {
    public_key_in(bytes);
    return true;
  } catch (const std::runtime_error&) {
    return false;
  }
}

struct Silent final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

[[maybe_unused]] const bool is_silent = [] {
  static Silent silent;
  c10::WarningUtils::set_warning_handler(&silent);
  return true;
}();

} // namespace

const std::vector<fuzzing::Target> fuzzing::kTargets = {{'t', target_accepts},
                                                        {'x', index_accepts},
                                                        {'b', block_accepts},
                                                        {'s', signature_accepts},
                                                        {'k', key_accepts}};
