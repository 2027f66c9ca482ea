#include "archive.h"

#include "base/mapped_file.h"
#include "base/open_file.h"
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

namespace {

class OpenFileAdapter final : public ReadAdapterInterface {
public:
  explicit OpenFileAdapter(std::shared_ptr<const OpenFile> file) : file_(std::move(file)) {}

  size_t size() const override { return file_->size(); }
  size_t read(uint64_t position, void* buffer, size_t count, const char*) const override {
    return file_->read(position, std::span(static_cast<std::byte*>(buffer), count));
  }

private:
  const std::shared_ptr<const OpenFile> file_;
};

// Return the name of a package's record in the archive, or "" if there is no such record.
std::string record_name(PyTorchStreamReader& reader, const std::string& name) {
  // TorchScript programs store it in "extra/"; exported programs store it at the top level.
  const auto extra = "extra/" + name;
  return reader.hasRecord(extra) ? extra : reader.hasRecord(name) ? name : "";
}

bool load_package_in(PyTorchStreamReader& reader, const OpenFile* file,
                     std::optional<ProgramLife> program) {
  const auto read = [&](const std::string& name) -> std::optional<FileRecord> {
    const auto record = record_name(reader, name);
    if (record.empty()) return std::nullopt;
    auto [data, size] = reader.getRecord(record);
    const std::span bytes(static_cast<const std::byte*>(data.get()), size);
    return FileRecord{bytes, std::make_shared<at::DataPtr>(std::move(data))};
  };
  const auto map = [&](const std::string& name) -> std::optional<FileRecord> {
    const auto record = record_name(reader, name);
    if (record.empty() || !file) return std::nullopt;
    const auto size = reader.getRecordSize(record);
    if (reader.getRecordOffset(record) + size > file->size())
      throw FileProblem(name + " goes beyond the end of the file");
    auto mapped = std::make_shared<MappedFile>(*file, reader.getRecordOffset(record), size);
    const std::span bytes(mapped->data(), size);
    return FileRecord{bytes, std::move(mapped)};
  };
  return load_package({read, map, file ? file->name() : "a program", file, std::move(program)});
}

} // namespace

std::shared_ptr<ReadAdapterInterface> adapter_of(std::shared_ptr<const OpenFile> file) {
  return std::make_shared<OpenFileAdapter>(std::move(file));
}

bool take_package_of(std::shared_ptr<const OpenFile> file, std::optional<ProgramLife> program) {
  PyTorchStreamReader reader(adapter_of(file));
  return load_package_in(reader, file.get(), std::move(program));
}

bool take_package_of(const std::shared_ptr<ReadAdapterInterface>& file, ProgramLife program) {
  PyTorchStreamReader reader(file);
  return load_package_in(reader, nullptr, std::move(program));
}

bool take_package_of(std::istream& file, ProgramLife program) {
  file.clear();
  PyTorchStreamReader reader(&file);
  return load_package_in(reader, nullptr, std::move(program));
}

bool take_package_of(const std::string& file, ProgramLife program) {
  return take_package_of(std::make_shared<const OpenFile>(file), std::move(program));
}

bool take_package_of(const std::string& file) {
  return take_package_of(std::make_shared<const OpenFile>(file), std::nullopt);
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
