// How packages come to be read by who loads a program: `torch::jit::load`, from C++ or Python.
//
// Where this library comes before libtorch among those of a program (linked to it, or preloaded),
// it is our `torch::jit::load` that the program calls. Where it does not (Python, dlopen), PyTorch
// says that it has loaded a file, while it still has it open.

#include "archive.h"
#include "support/exception_text.h"
#include "support/open_file.h"
#include "torchmdla/torchmdla.h"

#include <c10/util/Logging.h>
#include <c10/util/ScopeExit.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/serialization/import.h>

#include <array>
#include <cstddef>
#include <filesystem>
#include <istream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include <dlfcn.h>

namespace torchmdla {

namespace {

using caffe2::serialize::PyTorchStreamReader;
using torch::jit::Module;

// While libtorch loads what ours was called for: what it says then is no news.
thread_local bool is_loading = false;

// The next definition of a function of this library.
template <class Function> Function* original_of(Function* function) {
  Dl_info info{};
  const bool found = dladdr(reinterpret_cast<void*>(function), &info) && info.dli_sname;
  auto* original = found ? dlsym(RTLD_NEXT, info.dli_sname) : nullptr;
  TORCH_CHECK(original, "torchmdla: libtorch has no such torch::jit::load");
  return reinterpret_cast<Function*>(original);
}

// A program that PyTorch has loaded runs, whatever becomes of its package.
template <class Work> void without_failing(Work work) {
  try {
    work();
  } catch (const std::exception& error) {
    TORCH_WARN("torchmdla: a program runs without its package: ", text_of(error));
  }
}

template <class Load> Module load_alone(Load load) {
  const bool outer = std::exchange(is_loading, true);
  const auto leave = c10::make_scope_exit([&] { is_loading = outer; });
  return load();
}

// What is made of a module (frozen, cloned) is in its compilation unit, too.
ProgramLife life_of(const Module& module) {
  return module._ivalue()->compilation_unit();
}

// What `load` returns, prepared if `take` finds a package in its file.
template <class Load, class Take> Module load_prepared(Load load, Take take) {
  auto module = load_alone(load);
  if (is_enabled())
    without_failing([&] {
      if (take(life_of(module))) prepare(module);
    });
  return module;
}

bool is_archive(const OpenFile& file) {
  constexpr std::array magic{std::byte{'P'}, std::byte{'K'}, std::byte{3}, std::byte{4}};
  std::array<std::byte, magic.size()> head{};
  return file.read(0, head) == head.size() && head == magic;
}

// Of the files that this process has open, the one with this number; null where there is none.
std::shared_ptr<const OpenFile> open_archive(const std::string& serialization_id) {
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", failed)) {
    if (!entry.is_regular_file(failed)) continue;
    try {
      const auto file = std::make_shared<const OpenFile>(
          entry.path(), std::filesystem::read_symlink(entry.path()));
      if (!is_archive(*file)) continue;
      PyTorchStreamReader reader(adapter_of(file));
      if (reader.serializationId() == serialization_id) return file;
    } catch (const std::exception&) {
      continue; // not to be read, or an archive of somebody else's
    }
  }
  return nullptr;
}

void on_event(const std::string& event, const std::map<std::string, std::string>& details) {
  if (event != "torch.script.load.metadata" || is_loading || !is_enabled()) return;
  const auto id = details.find("serialization_id");
  if (id == details.end()) return;
  without_failing([&] {
    // There will be a program only when the file is closed.
    if (auto file = open_archive(id->second)) take_package_of(std::move(file), std::nullopt);
  });
}

} // namespace

void watch_loads() {
  c10::SetAPIUsageMetadataLogger(on_event);
}

Module load_with_package(const std::string& file, std::optional<c10::Device> device) {
  auto module = load_alone([&] {
    return torch::jit::import_ir_module(std::make_shared<torch::jit::CompilationUnit>(), file,
                                        device);
  });
  if (is_enabled()) without_failing([&] { take_package_of(file, life_of(module)); });
  return module;
}

} // namespace torchmdla

// PyTorch's overloads, each of which calls itself in libtorch.
namespace torch::jit {

using Device = std::optional<c10::Device>;
using File = std::shared_ptr<caffe2::serialize::ReadAdapterInterface>;

#define TORCHMDLA_LOAD(Source)                                                                     \
  Module load(Source file, Device device, bool load_debug_files) {                                 \
    using Load = Module(Source, Device, bool);                                                     \
    static auto* const original = torchmdla::original_of<Load>(&load);                             \
    return torchmdla::load_prepared([&] { return original(file, device, load_debug_files); },      \
                                    [&](torchmdla::ProgramLife program) {                          \
                                      return torchmdla::take_package_of(file, std::move(program)); \
                                    });                                                            \
  }                                                                                                \
  Module load(Source file, Device device, ExtraFilesMap& extra_files, bool load_debug_files) {     \
    using Load = Module(Source, Device, ExtraFilesMap&, bool);                                     \
    static auto* const original = torchmdla::original_of<Load>(&load);                             \
    return torchmdla::load_prepared(                                                               \
        [&] { return original(file, device, extra_files, load_debug_files); },                     \
        [&](torchmdla::ProgramLife program) {                                                      \
          return torchmdla::take_package_of(file, std::move(program));                             \
        });                                                                                        \
  }

TORCHMDLA_LOAD(const std::string&)
TORCHMDLA_LOAD(std::istream&)
TORCHMDLA_LOAD(File)

#undef TORCHMDLA_LOAD

} // namespace torch::jit
