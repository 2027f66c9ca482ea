// Packages in files that PyTorch reads (and torchmdla/torchmdla.h).
#pragma once

#include <iosfwd>
#include <memory>
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

// Makes what a file has of a package known to groups; false where it has none. What is no file of
// this process's, or is open for the program, is the program's affair: it knows whose it is.
bool take_package_of(std::shared_ptr<const OpenFile> file);
bool take_package_of(const std::shared_ptr<caffe2::serialize::ReadAdapterInterface>& file);
bool take_package_of(std::istream& file);

// Has whatever file PyTorch loads from now on looked at for a package.
void watch_loads();

} // namespace torchmdla
