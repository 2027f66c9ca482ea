#include "mapped_weights.h"

#include "archive.h"
#include "base/open_file.h"

#include <ATen/core/ivalue.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/ir.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <unistd.h>

namespace torchmdla {

namespace {

using torch::jit::Block;
using torch::jit::Module;
using torch::jit::Node;

// Size from which weights are mapped. Smaller ones are hardly packed.
constexpr size_t least_bytes = 64 << 10;

// Alignment of weights, which is that of PyTorch's allocator and archives.
constexpr size_t alignment = 64;

void visit_constants(Block* block, const std::function<void(Node*)>& visit) {
  for (auto* node : block->nodes()) {
    if (node->kind() == c10::prim::Constant && node->hasAttribute(c10::attr::value)) visit(node);
    for (auto* inner : node->blocks())
      visit_constants(inner, visit);
  }
}

// Visit the constants of the graphs of all methods.
void visit_constants(const Module& module, const std::function<void(Node*)>& visit) {
  for (const auto& part : module.modules())
    for (const auto& method : part.get_methods())
      if (auto* function = torch::jit::tryToGraphFunction(method.function())) {
        function->ensure_defined();
        visit_constants(function->graph()->block(), visit);
      }
}

// Return whether the memory of `tensor` may be in a file.
bool is_mappable(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() && tensor.device().is_cpu() &&
         tensor.layout() == at::kStrided && tensor.storage().nbytes() >= least_bytes;
}

// Return the storages of the module's attributes and constants that may be in a file.
std::set<c10::StorageImpl*> storages_of(const Module& module) {
  c10::IValue::HashAliasedIValues values;
  c10::IValue(module._ivalue()).getSubValues(values);
  visit_constants(module, [&](Node* node) {
    if (node->kindOf(c10::attr::value) == torch::jit::AttributeKind::t)
      values.insert(node->t(c10::attr::value));
    else if (node->kindOf(c10::attr::value) == torch::jit::AttributeKind::ival)
      node->ival(c10::attr::value).getSubValues(values);
  });
  std::set<c10::StorageImpl*> storages;
  for (const auto& value : values)
    if (value.isTensor() && is_mappable(value.toTensor()))
      storages.insert(value.toTensor().storage().unsafeGetStorageImpl());
  return storages;
}

at::DataPtr data_at(const MappedWeights& mapping, uint64_t offset) {
  return {mapping->bytes().data() + offset, new MappedWeights(mapping),
          [](void* owner) { delete static_cast<MappedWeights*>(owner); }, at::kCPU};
}

// Return whether the file has these bytes at `offset`. They are read in parts into a buffer, so
// that the mapping's pages stay out of memory.
bool has_bytes(const OpenFile& file, uint64_t offset, std::span<const std::byte> bytes) {
  std::vector<std::byte> buffer(1 << 18);
  while (!bytes.empty()) {
    const auto part = bytes.first(std::min(bytes.size(), buffer.size()));
    if (file.read(offset, std::span(buffer).first(part.size())) != part.size() ||
        std::memcmp(buffer.data(), part.data(), part.size()) != 0)
      return false;
    bytes = bytes.subspan(part.size());
    offset += part.size();
  }
  return true;
}

// Write all bytes at `offset` of a file. Throw FileProblem if that is not possible.
void write_bytes(int descriptor, std::span<const std::byte> bytes, uint64_t offset) {
  // Linux may keep what one call writes as a whole, and an access then makes all of it resident.
  constexpr size_t part = 64 << 10;
  while (!bytes.empty()) {
    const auto count =
        pwrite(descriptor, bytes.data(), std::min(bytes.size(), part), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0)
      throw FileProblem("the weights cannot be written to a file: " +
                        std::generic_category().message(errno));
    bytes = bytes.subspan(static_cast<size_t>(count));
    offset += static_cast<uint64_t>(count);
  }
}

std::span<const std::byte> bytes_of(const c10::StorageImpl& storage) {
  return {static_cast<const std::byte*>(storage.data()), storage.nbytes()};
}

} // namespace

MappedWeights map_weights(const Module& module, const OpenFile& file) {
  const auto mapping = std::make_shared<PrivateMapping>(file);
  caffe2::serialize::PyTorchStreamReader reader(
      adapter_of(std::make_shared<const OpenFile>(file.path())));
  std::multimap<size_t, uint64_t> offsets; // of records, by size
  for (const auto& name : reader.getAllRecords())
    offsets.emplace(reader.getRecordSize(name), reader.getRecordOffset(name));
  for (auto* storage : storages_of(module)) {
    const auto [first, last] = offsets.equal_range(storage->nbytes());
    const auto record = std::find_if(first, last, [&](const auto& record) {
      const auto offset = record.second;
      return offset % alignment == 0 && has_bytes(file, offset, bytes_of(*storage));
    });
    if (record != last) storage->set_data_ptr_noswap(data_at(mapping, record->second));
  }
  return mapping;
}

MappedWeights map_constants(const Module& module, int descriptor) {
  std::vector<Node*> nodes;
  std::map<c10::StorageImpl*, uint64_t> offsets;
  uint64_t end = 0;
  visit_constants(module, [&](Node* node) {
    if (node->kindOf(c10::attr::value) != torch::jit::AttributeKind::t) return;
    const auto& tensor = node->t(c10::attr::value);
    if (!is_mappable(tensor)) return;
    nodes.push_back(node);
    const auto [offset, is_new] = offsets.emplace(tensor.storage().unsafeGetStorageImpl(), end);
    if (!is_new) return;
    write_bytes(descriptor, bytes_of(*offset->first), end);
    end = (end + offset->first->nbytes() + page_size() - 1) / page_size() * page_size();
  });
  const OpenFile file("/proc/self/fd/" + std::to_string(descriptor), "the file of mapped weights");
  const auto mapping = std::make_shared<PrivateMapping>(file);
  std::map<c10::StorageImpl*, c10::Storage> storages;
  for (const auto& [storage, offset] : offsets)
    storages.emplace(storage, c10::Storage(c10::Storage::use_byte_size_t(), storage->nbytes(),
                                           data_at(mapping, offset), /*allocator=*/nullptr));
  for (auto* node : nodes) {
    const auto& tensor = node->t(c10::attr::value);
    auto version = tensor.is_inference() ? c10::VariableVersion() : c10::VariableVersion(0);
    at::Tensor mapped(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(
        std::move(version), /*allow_tensor_metadata_change=*/true));
    mapped.unsafeGetTensorImpl()->set_storage_keep_dtype(
        storages.at(tensor.storage().unsafeGetStorageImpl()));
    node->t_(c10::attr::value, std::move(mapped));
  }
  return mapping;
}

} // namespace torchmdla
