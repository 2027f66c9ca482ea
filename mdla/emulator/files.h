// Reading and writing of whole files.
#pragma once

#include "fault.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

namespace mdla {

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  require(file.good(), "cannot read \"", path, "\": ", std::strerror(errno));
  std::streamoff size = file.tellg();
  require(size >= 0 && size < std::streamoff{1} << 40, "cannot read \"", path, "\"");
  std::string bytes(static_cast<size_t>(size), '\0');
  file.seekg(0);
  file.read(bytes.data(), size);
  require(file.good(), "cannot read \"", path, "\"");
  return bytes;
}

inline void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  require(file.good(), "cannot write \"", path, "\": ", std::strerror(errno));
}

} // namespace mdla
