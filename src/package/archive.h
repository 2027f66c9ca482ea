// Packages in files that PyTorch reads (and torchmdla/torchmdla.h).
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

// PyTorch's access to a file that is open.
std::shared_ptr<caffe2::serialize::ReadAdapterInterface>
adapter_of(std::shared_ptr<const OpenFile> file);

// Makes what a file has of a package known to groups, for as long as `program` lives (add_package
// in group/packaged.h); false where it has none. What is no file of this process's, or is open for
// the program, is the program's affair: it knows whose it is.
bool take_package_of(std::shared_ptr<const OpenFile> file, std::optional<ProgramLife> program);
bool take_package_of(const std::shared_ptr<caffe2::serialize::ReadAdapterInterface>& file,
                     ProgramLife program);
bool take_package_of(std::istream& file, ProgramLife program);
bool take_package_of(const std::string& file, ProgramLife program);

// The module of a file, with the package that this has. Needs no GIL, which PyTorch's function in
// Python keeps for as long as it reads.
torch::jit::Module load_with_package(const std::string& file, std::optional<c10::Device> device);

// Makes the package of the file that `module` was loaded from known to its groups. Throws nothing:
// where the package cannot be read, a warning tells why.
void take_loaded_package(const std::string& file, const torch::jit::Module& module);

} // namespace torchmdla
