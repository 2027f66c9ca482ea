// Packages in files that PyTorch reads. archive.cpp also defines functions of
// torchmdla/torchmdla.h.
#pragma once

#include "group/packaged.h"

#include <torch/csrc/jit/api/module.h>

#include <iosfwd>
#include <memory>
#include <optional>
#include <string>

namespace caffe2::serialize {
class PyTorchStreamReader;
class ReadAdapterInterface;
} // namespace caffe2::serialize

namespace torchmdla {

class OpenFile;

// Return an adapter through which PyTorch reads `file`.
std::shared_ptr<caffe2::serialize::ReadAdapterInterface>
adapter_of(std::shared_ptr<const OpenFile> file);

// Add the package in `file` to those that groups search, for the lifetime of `program`
// (add_package in group/packaged.h). Return false if the file has no package. The overloads with an
// adapter or a stream do not check the owner of the file: the program opened it, so the program
// decides whether to trust it.
bool take_package_of(std::shared_ptr<const OpenFile> file, std::optional<ProgramLife> program);
bool take_package_of(const std::shared_ptr<caffe2::serialize::ReadAdapterInterface>& file,
                     ProgramLife program);
bool take_package_of(std::istream& file, ProgramLife program);
bool take_package_of(const std::string& file, ProgramLife program);

// Load the module in `file`, and its package if it has one. The caller need not hold the GIL;
// PyTorch's Python function holds it during the whole load.
torch::jit::Module load_with_package(const std::string& file, std::optional<c10::Device> device);

// Add the package in `file`, from which `module` was loaded, to those that groups search. Do not
// throw: if the package cannot be read, a warning gives the reason.
void add_package_of_module(const std::string& file, const torch::jit::Module& module);

} // namespace torchmdla
