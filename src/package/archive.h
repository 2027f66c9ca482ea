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

// Makes what a file has of a package known to groups; false where it has none.
bool take_package_of(caffe2::serialize::PyTorchStreamReader& reader, const std::string& file);
bool take_package_of(const std::shared_ptr<caffe2::serialize::ReadAdapterInterface>& file);
bool take_package_of(std::istream& file);

// Has whatever file PyTorch loads from now on looked at for a package.
void watch_loads();

} // namespace torchmdla
