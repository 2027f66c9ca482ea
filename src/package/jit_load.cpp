// Definitions of `torch::jit::load` that read a program's package as well.
//
// If this library comes before libtorch in a program's link order (linked or preloaded), the
// program calls these definitions. Python's function is wrapped instead (capture/torchscript.py). A
// program that loads this library later calls torchmdla_take_package. This code does not use the
// file descriptors that the program has open: closing a second descriptor of a file drops all locks
// that the process holds on the file (POSIX, fcntl).

#include "archive.h"
#include "runtime/exception_text.h"
#include "torchmdla/torchmdla.h"

#include <torch/csrc/jit/serialization/import.h>

#include <istream>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <dlfcn.h>

namespace torchmdla {

namespace {

using torch::jit::Module;

// Return the definition of `function` in the next library that has one (libtorch).
template <class Function> Function* original_of(Function* function) {
  Dl_info info{};
  const bool found = dladdr(reinterpret_cast<void*>(function), &info) && info.dli_sname;
  auto* original = found ? dlsym(RTLD_NEXT, info.dli_sname) : nullptr;
  TORCH_CHECK(original, "torchmdla: libtorch has no such torch::jit::load");
  return reinterpret_cast<Function*>(original);
}

// Run `work`, and turn an exception into a warning: a program that PyTorch has loaded must run even
// if reading its package fails.
template <class Work> void without_failing(Work work) {
  try {
    work();
  } catch (const std::exception& error) {
    TORCH_WARN("torchmdla: a program runs without its package: ", text_of(error));
  }
}

// Return the lifetime of the program: that of its compilation unit, which modules derived from
// `module` (frozen, cloned) share.
ProgramLife life_of(const Module& module) {
  return module._ivalue()->compilation_unit();
}

// Return the module from `load`, prepared if `add_package` finds a package in its file.
template <class Load, class AddPackage> Module load_prepared(Load load, AddPackage add_package) {
  auto module = load();
  if (is_enabled())
    without_failing([&] {
      if (add_package(life_of(module))) prepare(module);
    });
  return module;
}

} // namespace

void add_package_of_module(const std::string& file, const Module& module) {
  if (is_enabled()) without_failing([&] { take_package_of(file, life_of(module)); });
}

Module load_with_package(const std::string& file, std::optional<c10::Device> device) {
  auto module =
      torch::jit::import_ir_module(std::make_shared<torch::jit::CompilationUnit>(), file, device);
  add_package_of_module(file, module);
  return module;
}

} // namespace torchmdla

int torchmdla_take_package(const char* file) {
  try {
    return torchmdla::take_package_of(file) ? 1 : 0;
  } catch (...) {
    return -1;
  }
}

// PyTorch's overloads. Each calls the same overload in libtorch.
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
