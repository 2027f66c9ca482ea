#include "archive.h"

#include "group/group_report.h"
#include "package.h"
#include "torchmdla/torchmdla.h"

#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/runtime/graph_executor.h>

#include <memory>
#include <utility>

namespace torchmdla {

using caffe2::serialize::PyTorchStreamReader;
using caffe2::serialize::ReadAdapterInterface;

bool take_package_of(PyTorchStreamReader& reader, const std::string& file) {
  const auto read = [&](const std::string& name) -> std::optional<FileRecord> {
    // Programs of TorchScript have it among their extra files, exported programs beside theirs.
    const auto extra = "extra/" + name;
    const auto& found = reader.hasRecord(extra) ? extra : name;
    if (!reader.hasRecord(found)) return std::nullopt;
    auto [data, size] = reader.getRecord(found);
    const std::span bytes(static_cast<const std::byte*>(data.get()), size);
    return FileRecord{bytes, std::make_shared<at::DataPtr>(std::move(data))};
  };
  return take_package(read, file);
}

bool take_package_of(const std::shared_ptr<ReadAdapterInterface>& file) {
  PyTorchStreamReader reader(file);
  return take_package_of(reader, "a program");
}

bool take_package_of(std::istream& file) {
  file.clear();
  PyTorchStreamReader reader(&file);
  return take_package_of(reader, "a program");
}

bool take_package_of(const std::string& file) {
  PyTorchStreamReader reader(file);
  return take_package_of(reader, file);
}

void prepare(const torch::jit::Module& module) {
  const auto method = module.find_method("forward");
  auto* function = method ? torch::jit::tryToGraphFunction(method->function()) : nullptr;
  if (!function) return;
  const auto first = next_group_number();
  torch::jit::Stack inputs{module._ivalue()};
  function->get_executor().getPlanFor(inputs);
  prepare_groups(first);
}

} // namespace torchmdla
